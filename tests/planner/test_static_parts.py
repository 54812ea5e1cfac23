"""A refusal proposes parts of the model that can be planned, with a call that works."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import remate
from remate.api.parts import PartSchedules
from remate.capture.capture_step import CaptureError, capture

from .test_capture_errors import Inner, x


class Matched(nn.Module):
    """A backbone and layers that can be planned, and a loss that depends on values."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])
        self.out, self.head = nn.Linear(4, 4), head

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        a = self.backbone(a)
        for layer in self.layers:
            a = layer(a)
        a = self.out(a) if self.head is None else self.head(a)
        return a[a > a.detach().mean()].sum() if self.head is None else a.sum()


@pytest.mark.slow
def test_a_refusal_says_which_parts_can_be_planned_instead() -> None:
    call = 'remate.plan(model, args, at=["backbone", "layers.[0-2]"])'
    with pytest.raises(CaptureError) as caught:
        capture(Matched(), (x(),))
    assert call in str(caught.value)
    with pytest.raises(CaptureError) as caught:
        capture(Matched(Inner(lambda self, a: a * a.sum().item())), (x(),))
    assert caught.value.module == "head"
    assert call in str(caught.value)
    with pytest.raises(CaptureError) as caught:
        capture(Matched(Inner(lambda self, a: a * random.random())), (x(),))
    assert (
        "plan the parts of the model that draw nothing; or plan what is around it: remate.plan(model, args, at="
        in str(caught.value)
    )
    schedule = remate.plan(Matched().train(), (x(),), at=["backbone", "layers.[0-2]"], budget="100%", cost="cpu")
    assert isinstance(schedule, PartSchedules)  # the call as it stands in the message
    assert len(schedule) == 2


class Clamped(nn.Module):
    """A layer that branches on values while it trains, as in DETR."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.mlp, self.norm = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), nn.LayerNorm(4)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        a = self.norm(self.mlp(self.attention(a)))
        return a if torch.isfinite(a).all() else a.clamp(-1, 1)


def test_what_is_like_the_part_that_failed_is_no_way_out() -> None:
    model = nn.ModuleDict(
        {"layers": nn.Sequential(*[Clamped() for _ in range(3)]), "decoder": Matched(nn.Linear(4, 4))}
    )
    whole = Inner(lambda self, a: self.model["decoder"](self.model["layers"](a)))
    whole.model = model
    with pytest.raises(CaptureError) as caught:
        capture(whole, (x(),))
    assert caught.value.module == "model.layers.0"
    at = ["model.layers.[0-2].attention", "model.layers.[0-2].mlp", "model.decoder"]
    assert f"remate.plan(model, args, at={json.dumps(at)})" in str(caught.value)
    schedule = remate.plan(whole.train(), (x(),), at=at, budget="100%", cost="cpu")
    assert isinstance(schedule, PartSchedules)
    assert len(schedule) == 3


class Cache:
    """No tensor, and nothing that a file can describe."""

    __slots__ = ("rows",)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, a: torch.Tensor, cache: Cache) -> torch.Tensor:
        result: torch.Tensor = self.mlp(a)
        return result


def test_a_part_that_cannot_be_planned_is_left_out_of_the_proposal() -> None:
    model = Inner(lambda self, a: self.head(self.layers[1](self.layers[0](a, Cache()), Cache())))
    model.layers, model.head = nn.ModuleList([Cached(), Cached()]), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with pytest.raises(CaptureError, match="input 'cache' is of type Cache") as caught:
        remate.plan(model, (x(),), at=["layers.[0-1]", "head"], budget="100%", cost="cpu")
    assert caught.value.parts == ("head",)


def test_parts_of_what_cannot_be_planned_are_proposed_with_the_others() -> None:
    model = Inner(lambda self, a: self.head(self.layers(a)))
    model.layers, model.head = nn.Sequential(Clamped(), Clamped()), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with pytest.raises(CaptureError) as caught:
        remate.plan(model, (x(),), at=["layers.[0-1]", "head"], budget="100%", cost="cpu")
    at = ["head", "layers.[0-1].attention", "layers.[0-1].mlp"]
    assert f"remate.plan(model, args, at={json.dumps(at)})" in str(caught.value)


def test_the_module_that_draws_is_no_part() -> None:
    class Masking(nn.Module):
        """Draws after a layer and before another, as wav2vec2 does."""

        def __init__(self) -> None:
            super().__init__()
            self.features, self.encoder = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            a = self.features(a)
            kept = numpy.random.rand(4) > 0.1
            return self.encoder(a * torch.from_numpy(kept))

    model = Inner(lambda self, a: self.head(self.body(a)))
    model.body, model.head = Masking(), nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(CaptureError, match=r"draws from numpy\.random") as caught:
        capture(model, (x(),))
    assert caught.value.module == "body"
    assert caught.value.parts == ("body.features", "body.encoder", "head")


def test_many_parts_are_left_to_auto() -> None:
    model = Inner(lambda self, a: [layer(a) for layer in self.layers.values()][-1] * a.sum().item())
    model.layers = nn.ModuleDict({name: nn.Sequential(nn.Linear(4, 4)) for name in "abcdefgh"})
    with pytest.raises(CaptureError, match=r"plan what is around it: remate\.auto\(model\)$"):
        capture(model, (x(),))


def test_proposed_parts_have_been_tried() -> None:
    """Parts that are refused in turn, that forward does not call, and containers without forward are no way out."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.clamped = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), Clamped()

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return self.clamped(self.up(a) * int(a.shape[0] * (a == a).float().mean().item()))

    model = Inner(lambda self, a: self.group.head(self.counting(a)) * a.sum().item())
    model.counting, model.unused = Counting(), nn.Sequential(nn.Linear(4, 4))
    model.group = nn.Module()
    model.group.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with pytest.raises(CaptureError) as caught:
        remate.plan(model, (x(),), budget="100%", cost="cpu")
    assert sorted(caught.value.parts) == [
        "counting.clamped.attention",
        "counting.clamped.mlp",
        "counting.up",
        "group.head",
    ]
    schedule = remate.plan(model, (x(),), at=caught.value.parts, budget="100%", cost="cpu")
    assert isinstance(schedule, PartSchedules)


def test_what_cannot_be_captured_in_parts_is_refused_without_any() -> None:
    model = Inner(lambda self, a: self.clamped(a) * a.sum().item())
    model.clamped = nn.Sequential(Inner(lambda self, a: self.last(a) if a.sum() > -1e9 else a))
    model.clamped[0].last = nn.Linear(4, 4)
    for refused in (remate.plan, remate.frontier):
        with pytest.raises(CaptureError, match=r"reads a tensor's value") as caught:
            refused(model, (x(),), cost="cpu")
        assert caught.value.parts == ()
        assert "around it" not in str(caught.value)


@pytest.mark.parametrize("written", [torch.zeros(4), None], ids=["elsewhere", "an input"])
def test_what_writes_where_it_may_not_has_parts_that_do_not(written: torch.Tensor | None) -> None:
    """As question answering in transformers, which limits the positions among its inputs."""
    target = None if written is None else [written]  # in a list, where no module registers it

    def forward(self: Any, a: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(a)
        (a if target is None else target[0]).clamp_(0, 1)
        return y.sum()

    model = Inner(forward)
    model.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with pytest.raises(CaptureError, match=r'test_static_parts.*\n.*at="body"\)') as caught:
        remate.plan(model, (x(),), budget="100%", cost="cpu")
    remate.plan(model, (x(),), at=caught.value.parts, budget="100%", cost="cpu")
