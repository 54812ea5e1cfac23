"""What `live=` cannot follow is refused, with the module and the line."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from math import isclose, sqrt
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.errors import CaptureError
from remate.live_attributes.capturing import captured
from remate_runtime import Schedule, StaleModelError, apply
from remate_runtime.format import Live

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Leaf(nn.Module):
    """Does something with `alpha` in a submodule, so that messages have a module to name."""

    alpha: Any
    beta: Any

    def __init__(self, run: Callable[[Any, torch.Tensor], Any], alpha: Any) -> None:
        super().__init__()
        self.run, self.alpha, self.beta = run, alpha, 0.25
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x * self.weight)


class Model(nn.Module):
    def __init__(self, run: Callable[[Any, torch.Tensor], Any], alpha: Any = 0.3) -> None:
        super().__init__()
        self.leaf = Leaf(run, alpha)

    def forward(self, x: torch.Tensor) -> Any:
        return self.leaf(x)


def _changing(self: Any, x: torch.Tensor) -> torch.Tensor:
    tensor = x * self.alpha
    self.alpha = self.alpha * 0.5
    return tensor


REFUSED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], str]] = {
    "integer": (lambda self, x: x * int(self.alpha * 9), r"by int\(\)"),
    "float": (lambda self, x: x * (2.0 if float(self.alpha) > 0.1 else 1.0), r"by float\(\)"),
    "floor": (lambda self, x: x * math.floor(self.alpha + 2), r"by floor\(\)"),
    "remainder": (lambda self, x: x * (self.alpha % 0.01), r"by mod\(\)"),
    "tensor": (lambda self, x: x * torch.tensor(self.alpha), r"by torch.tensor\(\)"),
    "size": (lambda self, x: x.repeat(round(self.alpha * 10), 1), r"by round\(\)"),
    "returned": (lambda self, x: (x, self.alpha), "returns it"),
    "large integer": (lambda self, x: x * 2 if self.alpha > 2**60 else x, "by comparison"),
    "two together": (lambda self, x: x * 2 if self.alpha < self.beta + 1 else x, "decides by the live number"),
    "turns round": (lambda self, x: x * 2 if (self.alpha - 0.5) ** 2 < 0.2 else x, "in a way that gives no range"),
    "other function": (lambda self, x: x * math.sin(self.alpha), r"by math.sin\(\)"),
    "function by its name": (lambda self, x: x * 2 if isclose(self.alpha, 7) else x, r"by math.isclose\(\)"),
    "function of a list": (lambda self, x: x * 2 if math.fsum([self.alpha, 1]) > 50 else x, r"by math.fsum\(\)"),
    "named argument": (lambda self, x: x * torch.tensor(data=self.alpha), r"by torch.tensor\(\)"),
    "item": (lambda self, x: x * 2 if torch.tensor([self.alpha]).item() > 50 else x, r"by torch.tensor\(\)"),
    "text": (lambda self, x: x * {"7": 2.0}.get(f"{self.alpha:.0f}", 1.0), r"by format\(\)"),
    "item of a dict": (lambda self, x: x * {7.0: 2.0}.get(self.alpha, 1.0), r"by hash\(\)"),
    "real part": (lambda self, x: x * 2 if int(self.alpha.real) > 50 else x, r"by int\(\)"),
    "copy": (lambda self, x: x * 2 if int(copy.deepcopy(self.alpha)) > 50 else x, r"by int\(\)"),
    "unused": (lambda self, x: x * 2, "computes the same whatever 'leaf.alpha' is"),
    "changed": (_changing, "forward itself changes the live attribute 'leaf.alpha'"),
}


@pytest.mark.quick("floor", "large integer")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    run, told = REFUSED[name]
    with pytest.raises(CaptureError, match=told) as caught:
        captured(Model(run), (X,), {}, live=["leaf.alpha", "leaf.beta"] if name == "two together" else ["leaf.alpha"])
    if name not in ("unused", "returned", "changed"):
        assert "test_refused.py:" in str(caught.value) or "test_refused.py" in caught.value.source


BRANCHES: dict[str, tuple[Callable[[Any, torch.Tensor], Any], float, Live]] = {
    "more than": (lambda self, x: x * self.alpha if self.alpha > 0.125 else x, 0.3, Live(planned=0.3, above=0.125)),
    "at most": (lambda self, x: x * self.alpha if self.alpha <= 0.75 else x, 0.3, Live(planned=0.3, max=0.75)),
    "not nothing": (lambda self, x: x * self.alpha if self.alpha else x, -0.3, Live(planned=-0.3, below=0)),
    "not one": (lambda self, x: x if self.alpha == 1.0 else x * self.alpha, 0.3, Live(planned=0.3, below=1)),
    "of a sum": (lambda self, x: x * self.alpha if 1 - self.alpha * 2 > 0 else x, 0.3, Live(planned=0.3, below=0.5)),
    "smaller of two": (lambda self, x: x * min(self.alpha, 0.9), 0.3, Live(planned=0.3, max=0.9)),
    "magnitude": (lambda self, x: x * abs(self.alpha), 0.3, Live(planned=0.3, min=0)),
    "default of an operator": (lambda self, x: nn.functional.leaky_relu(x, self.alpha), 0.01, Live(planned=0.01)),
}


@pytest.mark.quick("not nothing")
@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_becomes_the_range(name: str) -> None:
    run, alpha, live = BRANCHES[name]
    assert captured(Model(run, alpha), (X,), {}, live=["leaf.alpha"]).model.live == {"leaf.alpha": live}


@pytest.mark.quick("0.0_1")
@pytest.mark.parametrize(
    ("run", "alpha"),
    [
        (lambda self, x: x * self.alpha if self.alpha else x, 0.0),
        (lambda self, x: nn.functional.dropout(x, self.alpha), 0.0),
        (lambda self, x: nn.functional.dropout(x, self.alpha), 1.0),
    ],
)
def test_what_is_planned_at_a_special_number_is_refused(run: Any, alpha: float) -> None:
    with pytest.raises(CaptureError, match=r"leaf.alpha"):
        captured(Model(run, alpha), (X,), {}, live=["leaf.alpha"])


@pytest.mark.parametrize(
    ("requested", "told"),
    [
        (["leaf.alpa"], r"neither the model nor its call has a number 'leaf.alpa'\n  hint: did you mean leaf.alpha"),
        (["leaf.weight"], "'leaf.weight' is of type Parameter, and a live number is an int or float"),
        (["leaf.*.alpha"], "neither the model"),
        (["leaf.training"], "'leaf.training' is of type bool"),
        ("leaf.alpha", r"live is the text 'leaf.alpha'\n  hint: name attributes in a list"),
    ],
)
def test_names_that_are_no_numbers_are_refused(requested: Any, told: str) -> None:
    with pytest.raises(CaptureError, match=told):
        captured(Model(lambda self, x: x * self.alpha), (X,), {}, live=requested)


@pytest.mark.parametrize(
    ("run", "end"),
    [
        (lambda self, x: x * 2 if math.exp(self.alpha) > 100 else x, math.log(100)),
        (lambda self, x: x * 2 if sqrt(self.alpha + 1) > 4 else x, 15),
        (lambda self, x: x * 2 if math.log(self.alpha + 2, 2) > 4 else x, 14),
        (lambda self, x: x * 2 if math.fabs(self.alpha) > 9 and math.isfinite(self.alpha) else x, 9),
    ],
)
def test_decisions_by_functions_give_a_range(run: Any, end: float) -> None:
    """No value that is tried is beyond it."""
    live = captured(Model(lambda self, x: run(self, x) * self.alpha), (X,), {}, live=["leaf.alpha"]).model.live
    assert live["leaf.alpha"].max == pytest.approx(end)
    assert math.exp(0) == 1
    assert type(math.exp) is type(sqrt)  # set back


def test_an_input_of_the_same_name_is_refused() -> None:
    class Same(nn.Module):
        x = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.x

    with pytest.raises(CaptureError, match="both called 'x'"):
        captured(Same(), (X.clone().requires_grad_(),), {}, live=["x"])


class Two(nn.Module):
    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        halved = lambda self, x: torch.relu(x * 0.5) if self.alpha == 0.5 else x * self.alpha  # noqa: E731
        self.leaves = nn.ModuleList([Leaf(halved, first), Leaf(halved, second)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        leaf: Any
        for leaf in self.leaves:
            x = nn.functional.dropout(leaf(x), leaf.alpha)
        return x


class Powers(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        item: Any = self.leaves[0]
        other: Any = self.leaves[1]
        return (x * item.weight).exp().pow(item.alpha) + (x * other.weight).exp().pow(other.alpha)


@pytest.mark.slow
def test_what_is_special_between_two_is_found() -> None:
    """Planned on both sides of it, though each alone has a range."""
    with pytest.raises(CaptureError, match=r"'leaves.\*.alpha' stands for attributes that have no range in common"):
        captured(Two(0.25, 0.75), (X,), {}, live=["leaves.*.alpha"])
    with pytest.raises(CaptureError, match="no range in common"):  # backward of a power of 0 is another, in C++
        captured(Powers(-0.75, 0.75), (X,), {}, live=["leaves.*.alpha"])
    live = captured(Two(0.125, 0.25), (X,), {}, live=["leaves.*.alpha"]).model.live
    assert set(live) == {"leaves.0.alpha", "leaves.1.alpha"}  # no numbers of torch's own, such as _version
    assert live["leaves.0.alpha"] == Live(planned=0.125, above=0, below=0.5)


@pytest.fixture(scope="module")
def plain() -> Schedule:
    return remate.plan(Model(lambda self, x: x * self.alpha), (X,), budget="100%", cost="cpu", effort="quick")


def test_without_live_the_message_says_how_to_declare_it(plain: Schedule) -> None:
    told = r"remate.plan\(..., live=\['leaf.alpha'\]\)"
    model = Model(lambda self, x: x * self.alpha)
    planned = apply(model, plain, stale="warn")
    planned.leaf.alpha = 0.4
    with pytest.raises(StaleModelError, match=told):
        planned(X)
    model.leaf.alpha = 0.5
    with pytest.raises(StaleModelError, match=told):
        apply(model, plain)
