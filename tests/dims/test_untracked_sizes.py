"""Numbers that forward takes from a size in ways that are not followed: each new size is compared with the model."""

from __future__ import annotations

import copy
import math
from bisect import bisect
from collections.abc import Callable
from math import isqrt
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate import DimsError
from remate_runtime import StaleModelError, apply
from remate_runtime.format import Schedule, decode, encode

HOW: dict[str, Callable[[int], bool]] = {
    "int": lambda n: int(n) == 25,
    "float": lambda n: float(n) == 25,
    "root": lambda n: math.sqrt(n) == 5,
    "root of integers": lambda n: isqrt(n) == 5,
    "common divisor": lambda n: math.gcd(n, 25) == 25,
    "power": lambda n: n**0.5 == 5,
    "share": lambda n: n * 0.04 == 1,
    "ratio": lambda n: n / 5 == 5,
    "round": lambda n: round(n, 0) == 25,
    "comparison with a float": lambda n: 24.5 <= float(n) < 25.5,
    "set": lambda n: n in {25, 81},
    "dict": lambda n: {25: True}.get(n, False),
    "text": lambda n: f"{n}" == "25",
    "bits": lambda n: n & 31 == 25,
    "length": lambda n: 100 * n.bit_length() + int(n) == 525,
    "tensor": lambda n: torch.tensor([n]).item() == 25,
    "index": lambda n: n.__index__() == 25,
    "binary search": lambda n: bisect([5, 25, 26, 60], n) == 2,
}
OF_TENSORS: dict[str, Callable[[torch.Tensor], bool]] = {
    "len": lambda x: len(x) == 25,
    "rows": lambda x: sum(1 for _ in x) == 25,
    "pieces": lambda x: len(x.split(5)) == 5,
}
FOLLOWED: dict[str, Callable[[int], bool]] = {
    "product": lambda n: n * 2 >= 0,
    "quotient": lambda n: n // 1000 == 0,
    "sign": lambda n: +n >= 0,
    "real part": lambda n: n.real >= 0,
    "another axis": lambda n: int(torch.empty(3, 4).shape[0]) == 3,
    "pieces of another axis": lambda n: len(torch.empty(6, 4).split(3)) == 2,
}


Decision = Callable[[torch.Tensor], bool]


def by_rows(decides: Callable[[int], bool]) -> Decision:
    return lambda x: decides(x.shape[0])


UNTRACKED = OF_TENSORS | {how: by_rows(decides) for how, decides in HOW.items()}


class Deciding(nn.Module):
    def __init__(self, decides: Decision) -> None:
        super().__init__()
        self.linear, self.decides = nn.Linear(4, 4), decides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.linear(x).tanh()
        return (outputs * 2 if self.decides(x) else outputs).sum()


def planned(decides: Decision) -> tuple[nn.Module, nn.Module, bool]:
    eager = Deciding(decides)
    model = copy.deepcopy(eager)
    schedule = remate.plan(
        model, (torch.randn(40, 4),), budget="100%", cost="cpu", effort="quick", dims={"x": {0: "b=3..60"}}
    )
    schedule = decode(encode(schedule))
    return apply(model, schedule), eager, schedule.model.untracked_sizes


@pytest.mark.parametrize("how", UNTRACKED)
def test_each_size_computes_what_the_model_computes_or_is_refused(how: str) -> None:
    model, eager, untracked = planned(UNTRACKED[how])
    assert untracked
    refused = []
    for size in range(33, 14, -1):
        x = torch.randn(size, 4)
        try:
            outputs = model(x)
        except StaleModelError:
            refused.append(size)
        else:
            assert torch.equal(outputs, eager(x))
    assert refused == [size for size in range(33, 14, -1) if UNTRACKED[how](torch.empty(size, 4))] != []


@pytest.mark.parametrize("how", FOLLOWED)
def test_what_is_followed_needs_no_checks(how: str) -> None:
    assert not planned(by_rows(FOLLOWED[how]))[2]


class Combining(nn.Module):
    """Decides by two sizes: each condition is true at some tried size, both only at b=41 and up with t=3 and below."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conditions = [x.shape[0] > 40, x.shape[1] < 4]
        outputs = self.linear(x).tanh()
        return (outputs * 2 if conditions.count(True) == 2 else outputs).sum()


def test_combinations_of_conditions_that_were_not_tried() -> None:
    eager = Combining()
    dims = {"x": {0: "b=3..60", 1: "t=2..30"}}
    options: Any = {"budget": "100%", "cost": "cpu", "effort": "quick", "dims": dims}
    try:
        schedule = remate.plan(eager, (torch.randn(60, 30, 4),), **options)
    except DimsError:
        return
    assert isinstance(schedule, Schedule)
    assert schedule.model.untracked_sizes
    model = apply(copy.deepcopy(eager), schedule)
    for number in range(20):
        x = torch.randn(60 - number // 4, 30 - number, 4)
        assert torch.equal(model(x), eager(x))
    with pytest.raises(StaleModelError):
        model(torch.randn(50, 3, 4))
