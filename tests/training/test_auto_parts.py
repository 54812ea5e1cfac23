"""`remate.auto` plans the parts of a model that cannot be captured as a whole."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.training import state_of
from remate.training.state import Outcome
from remate_runtime import SteppedAsideWarning

from ..runtime.small import seeded
from .test_auto import QUICK, train

PRINTED = {**QUICK, "progress": "auto"}


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 16))


class Checked(nn.Module):
    """Reads values of its input, as models do that check the range of labels. The middle block reads some, too."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.middle, self.last = block(), middle or block(), block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.max() > 1e6:
            raise ValueError("out of range")
        return self.last(self.middle(self.first(x)))


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (2 if x.sum().item() > 0 else 3)


class Transposing(nn.Module):
    """Returns a result whose gradient has a different memory layout than the result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).transpose(0, 1).contiguous().transpose(0, 1)


class Dropping(nn.Module):
    """Leaves out layers at random, and has one that forward never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head, self.unused = nn.ModuleList([block() for _ in range(3)]), block(), block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(x)
        for layer in self.layers:
            if not torch.rand([]) < 0.5:
                x = x + layer(x)
        return x


def paths(model: Any) -> list[str]:
    return sorted(path for schedule in outcome_of(model).schedules for path in schedule.model.at)


def outcome_of(model: Any) -> Outcome:
    state = state_of(model)
    assert state is not None
    return state.outcome


@pytest.mark.quick("block-planned0")
@pytest.mark.parametrize(
    ("middle", "planned"),
    [
        (block, ["first", "last", "middle"]),
        (Reading, ["first", "last", "middle.inner"]),
        (Transposing, ["first", "last"]),
    ],
)
def test_the_parts_are_planned_and_training_stays_the_same(
    middle: Any, planned: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def checked() -> Any:
        return seeded(Checked(middle())).train()

    wanted = train(checked())
    model = remate.auto(checked(), file=tmp_path / "plans", **PRINTED)
    assert train(model) == wanted
    assert paths(model) == planned
    said = capsys.readouterr().err
    assert "forward reads a tensor's value" in said
    assert "the rest runs as it is" in said
    again = remate.auto(checked(), file=tmp_path / "plans", **QUICK)
    assert train(again) == wanted
    state = state_of(again)
    assert state is not None
    assert not state.outcome.planned


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.calls, self.seen = block(), block(), 0, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.last(self.first(x)) * min(1.0, self.calls / 4) + sum(self.seen[-2:])
        self.seen.append(y.detach())
        return y


class Choosing(nn.Module):
    """Chooses another way at its first short input, and keeps to it, as big_bird does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.way = block(), block(), "sparse"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "sparse":
            self.way = "full"
            return self.last(self.first(x.relu()))
        return self.last(self.first(x))


def test_a_choice_that_the_first_call_makes_does_not_leave_only_parts() -> None:
    model = remate.auto(seeded(Choosing()).train(), **QUICK)
    assert train(model) == train(seeded(Choosing()).train())
    assert paths(model) == []
    assert outcome_of(model).schedules


@pytest.mark.slow
def test_what_forward_counts_and_collects_stays_around_the_parts() -> None:
    model, sizes = remate.auto(seeded(Counting()).train(), **QUICK), (64,) * 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", SteppedAsideWarning)
        assert train(model, sizes) == train(seeded(Counting()).train(), sizes)
    assert paths(model) == ["first", "last"]


@pytest.mark.slow
def test_layers_that_are_left_out_at_random_are_planned() -> None:
    wanted = train(seeded(Dropping()).train())
    model = remate.auto(seeded(Dropping()).train(), **QUICK)
    assert train(model) == wanted
    assert paths(model) == ["head", "layers.[0-2]"]


class Acting(nn.Module):
    """Returns an object that no file can hold, whose tensors get gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = block(), block()

    def forward(self, x: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.head(self.body(x)))


@pytest.mark.slow
def test_an_output_that_a_file_cannot_hold_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def trained(model: Any) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            torch.manual_seed(step)
            (-model(torch.randn(64, 16)).log_prob(torch.arange(64) % 16).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    model = remate.auto(seeded(Acting()).train(), **PRINTED)
    for ours, eagers in zip(trained(model), trained(seeded(Acting()).train()), strict=True):
        assert torch.equal(ours, eagers)
    assert paths(model) == ["body", "head"]
    assert "of type Categorical, which a file cannot hold" in capsys.readouterr().err


@pytest.mark.slow
def test_an_output_beside_others_becomes_none_with_a_warning() -> None:
    class Both(Acting):
        def forward(self, x: torch.Tensor) -> Any:
            return x.mean() * self.head(x).mean(), super().forward(x)

    with pytest.warns(remate.LostOutputWarning, match="becomes None in the scheduled model"):
        remate.plan(seeded(Both()).train(), (torch.randn(64, 16),), cost="cpu", progress=None)
    model = remate.auto(seeded(Both()).train(), **QUICK)
    assert isinstance(model(torch.randn(64, 16))[1], torch.distributions.Categorical)
    assert set(paths(model)) == {"body", "head"}


@pytest.mark.slow
def test_code_around_the_parts_still_runs() -> None:
    model = remate.auto(seeded(Checked()).train(), **QUICK)
    train(model)
    with pytest.raises(ValueError, match="out of range"):
        model(torch.full((64, 16), 1e7))


@pytest.mark.slow("option0")
@pytest.mark.parametrize(
    "option",
    [
        {"budget": "min"},
        {"slowdown": 0.1, "budget": None},
        {"live": ["first.2.p"]},
        {"fsdp": "first", "shards": 2, "dims": None},
    ],
)
def test_options_for_whole_models_are_not_dropped(option: dict[str, Any]) -> None:
    model = remate.auto(seeded(Checked()).train(), **{**QUICK, **option})
    with pytest.raises(remate.CaptureError, match="reads a tensor's value"):
        train(model)


def test_advice_for_a_part_names_paths_of_the_whole_model() -> None:
    model, x = seeded(Checked(Reading())).train(), torch.randn(64, 16)
    with pytest.raises(remate.CaptureError, match=r'at=\["first", "middle\.inner"\]') as caught:
        remate.plan(model, (x,), at=["first", "middle"], budget="95%", cost="cpu", effort="quick", progress=None)
    assert caught.value.parts == ("first", "middle.inner")


class Routed(nn.Module):
    """Sends each row to one of its experts, so that their numbers of rows differ from call to call. The last one gets
    none."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(block() for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, result = (x[:, 0] * 100).long().abs() % 7, x
        for at, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == at)
            result = result.index_add(0, rows, expert(x[rows]))
        return result


@pytest.mark.slow
def test_parts_that_step_aside_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    model = remate.auto(seeded(Routed()).train(), **PRINTED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, (64, 60, 56, 52))
    aside = [str(warning.message) for warning in caught if isinstance(warning.message, SteppedAsideWarning)]
    assert 1 <= len(aside) <= 2  # within the budget, and over it
    assert all("other calls and parts of this kind are not reported" in text for text in aside)
    state = state_of(model)
    assert state is not None
    assert state.calls_aside > 6
    said = capsys.readouterr().err
    assert re.search(r"planned: (experts\.\S+, ){3}experts\.\S+ and \d more; the rest runs as it is", said), said
