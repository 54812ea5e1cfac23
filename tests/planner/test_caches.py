"""Caches that forward creates at its first call: created before planning, and by `apply` if a model lacks them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate.errors import CaptureError

X = torch.randn(6, 8)
CHANGES = "ignore:forward (reads and then changes|makes)"


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)


class Masked(Linear):
    mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None or self.mask.size(0) != x.size(0):
            self.mask = x.new_full((x.size(0), x.size(0)), float("-inf")).triu(1)
        h = self.linear(x)
        return ((h @ h.T + self.mask).softmax(-1) @ h).square().mean()


class Positions(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "positions"):
            self.positions = torch.arange(x.size(0), dtype=x.dtype)[:, None]
        return (self.linear(x) * self.positions).square().mean()


class Rotary(Linear):
    """A table that grows with the longest sequence."""

    inverse: torch.Tensor
    cos: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inverse", 0.5 ** torch.arange(8.0), persistent=False)
        self._grow(4)

    def _grow(self, length: int) -> None:
        self.longest = length
        self.register_buffer("cos", torch.outer(torch.arange(float(length)), self.inverse).cos(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) > self.longest:
            self._grow(x.size(0))
        return (self.linear(x) * self.cos[: x.size(0)]).square().mean()


def planned(model: nn.Module) -> Any:
    return remate.plan(model, (X,), budget="100%", cost="cpu", cache=False)


@pytest.mark.quick("Rotary")
@pytest.mark.parametrize(
    ("kind", "caches"), [(Masked, {"mask"}), (Positions, {"positions"}), (Rotary, {"cos", "longest"})]
)
def test_a_cache_is_made_before_planning_and_by_apply(kind: Any, caches: set[str]) -> None:
    torch.manual_seed(0)
    model = kind().train()
    fresh, eager = copy.deepcopy(model), copy.deepcopy(model)
    with pytest.warns(UserWarning, match="at its first call and keeps it"):
        schedule = planned(model)
    assert set(schedule.model.caches) == caches
    state = torch.get_rng_state()
    for module in (model, fresh):  # the one that was planned, and one of another process
        applied = remate_runtime.apply(module, schedule)
        for _ in range(3):
            module.zero_grad()
            eager.zero_grad()
            applied(X).backward()
            eager(X).backward()
            pairs = zip(module.parameters(), eager.parameters(), strict=True)
            assert all(torch.equal(p.grad, q.grad) for p, q in pairs if p.grad is not None and q.grad is not None)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings(CHANGES)
def test_a_cache_of_another_size_is_made_again() -> None:
    model = Masked()
    applied = remate_runtime.apply(model, planned(model), otherwise="original")
    with torch.no_grad():
        applied.eval()(X[:4])
    assert model.mask is not None
    assert model.mask.shape == (4, 4)
    applied.train()
    assert torch.equal(applied(X), model(X))


class Initialised(Linear):
    """The first batch decides."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.done = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.done:
            self.mean.copy_(x.mean(0).detach())
            self.done = True
        return self.linear(x - self.mean).square().mean()


def test_what_the_first_batch_decides_is_refused_and_the_advice_works() -> None:
    model = Initialised()
    with pytest.raises(CaptureError, match=r"'mean'[^~]*call the model once"):
        planned(model)
    assert not model.done
    model(X)
    applied = remate_runtime.apply(model, planned(model))
    assert torch.equal(applied(X), model(X))
    assert torch.equal(applied(X), model(X))


class Previous(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.keep()

    def keep(self) -> None:
        self.kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        result = h if self.kept is None else h + self.kept
        self.kept = h.detach()
        return result.square().mean()


class PreviousBuffer(Previous):
    def keep(self) -> None:
        self.register_buffer("kept", torch.zeros(6, 8))


def test_what_a_call_leaves_for_the_next_is_refused_and_the_advice_works() -> None:
    with pytest.raises(CaptureError, match=r"call the model once[^~]*self\.kept = torch\.zeros"):
        planned(Previous())
    called = Previous()
    called(X)
    for model in (called, PreviousBuffer()):
        assert_same_calls(model)


def assert_same_calls(model: nn.Module) -> None:
    """Three calls with backward are eager's, the state between them included."""
    eager = copy.deepcopy(model)
    applied = remate_runtime.apply(model, planned(model))
    for _ in range(3):
        losses = applied(X), eager(X)
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        gradients = [[p.grad for p in model.parameters() if p.grad is not None] for model in (applied, eager)]
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


class Cell(nn.Module):
    """Carries two tensors that backward reads."""

    def __init__(self, keep: str) -> None:
        super().__init__()
        self.cell, self.keep = nn.LSTMCell(8, 8), keep
        zeros = torch.zeros(6, 8), torch.zeros(6, 8)
        if keep == "buffers":
            self.register_buffer("h", zeros[0])
            self.register_buffer("c", zeros[1])
        elif keep == "attributes":
            self.h, self.c = zeros
        else:
            self.state: Any = {"tuple": zeros, "list": list(zeros), "dict": {"h": zeros}, "empty": {}}[keep]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keep in ("buffers", "attributes"):
            h, c = self.cell(x, (self.h, self.c))
            self.h, self.c = h.detach(), c.detach()
        elif self.keep in ("dict", "empty"):
            h, c = self.cell(x, self.state.get("h"))
            self.state["h"] = h.detach(), c.detach()
        else:
            h, c = self.cell(x, tuple(self.state))
            self.state = [h.detach(), c.detach()]
        return h.square().mean()


@pytest.mark.quick("buffers")
@pytest.mark.parametrize("keep", ["buffers", "attributes"])
def test_tensors_that_a_call_leaves_are_eagers_where_backward_reads_the_old_ones(keep: str) -> None:
    assert_same_calls(Cell(keep))


class Held:
    def __init__(self) -> None:
        self.h = torch.zeros(6, 8)


class OfObject(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.state = Held()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x + self.state.h)
        self.state.h = h.detach()
        return h.square().mean()


def test_tensors_that_a_call_leaves_in_objects_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"'state\.h' and changes it"):
        planned(OfObject())


@pytest.mark.quick("tuple")
@pytest.mark.filterwarnings("ignore:forward leaves tensors")
@pytest.mark.parametrize("keep", ["tuple", "list", "dict", "empty"])
def test_tensors_that_a_call_leaves_in_containers_are_refused(keep: str) -> None:
    model = Cell(keep)
    with pytest.raises(CaptureError, match=r"'state'.*next call|attribute 'state' and changes it[^~]*of its own"):
        planned(model)
    assert keep != "empty" or model.state == {}


SCALES: dict[torch.Size, float] = {}


class ScaledByShape(nn.Module):
    """Reads the shape once more at the first call, to fill a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape not in SCALES:
            SCALES[x.shape] = 1.0 / x.shape[0]
        return (self.inner(x).tanh() * SCALES[x.shape]).sum()


def test_a_cache_by_shape() -> None:
    """Reading a shape computes nothing, so that a call without it is the same step."""
    SCALES.clear()
    torch.manual_seed(0)
    model, x = ScaledByShape(), torch.rand(3, 4)
    wanted = (model.inner(x).tanh() * (1.0 / 3)).sum()
    with pytest.warns(UserWarning, match="SCALES"):
        schedule = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
    applied = remate_runtime.apply(model, schedule)
    for _ in range(2):
        assert torch.equal(applied(x), wanted)


class Replacing(Linear):
    """Its first call replaces a submodule by one that does something else, as BigBird does for short sequences."""

    kind = "sparse"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "sparse":
            self.kind = "full"
            self.linear = nn.Sequential(self.linear, nn.Softplus())
        return self.linear(x).square().mean()


def test_a_replaced_submodule_is_refused_until_it_is_there() -> None:
    model = Replacing()
    linear = model.linear
    with pytest.raises(CaptureError, match=r"forward changes attributes[^\n]*\n.*call the model once before planning"):
        remate.plan(model, (X,), budget="100%")
    assert model.linear is linear
    assert model.kind == "sparse"
    model(X)
    wanted = model(X)
    applied = remate_runtime.apply(model, remate.plan(model, (X,), budget="100%"))
    assert torch.equal(applied(X), wanted)
