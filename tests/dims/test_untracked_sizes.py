"""Numbers that forward takes from a size in ways that are not followed: each new size is compared with the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from math import isqrt

import pytest
import torch
from torch import nn

import remate
from remate_runtime import StaleModelError, apply
from remate_runtime.format import decode, encode

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
}
FOLLOWED: dict[str, Callable[[int], bool]] = {
    "product": lambda n: n * 2 >= 0,
    "quotient": lambda n: n // 1000 == 0,
    "another axis": lambda n: int(torch.empty(3, 4).shape[0]) == 3,
}


class Deciding(nn.Module):
    def __init__(self, decides: Callable[[int], bool]) -> None:
        super().__init__()
        self.linear, self.decides = nn.Linear(4, 4), decides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.linear(x).tanh()
        return (outputs * 2 if self.decides(x.shape[0]) else outputs).sum()


def planned(decides: Callable[[int], bool]) -> tuple[nn.Module, nn.Module, bool]:
    eager = Deciding(decides)
    model = copy.deepcopy(eager)
    schedule = remate.plan(
        model, (torch.randn(40, 4),), budget="100%", cost="cpu", effort="quick", dims={"x": {0: "b=3..60"}}
    )
    schedule = decode(encode(schedule))
    return apply(model, schedule), eager, schedule.model.untracked_sizes


@pytest.mark.parametrize("how", HOW)
def test_each_size_computes_what_the_model_computes_or_is_refused(how: str) -> None:
    model, eager, untracked = planned(HOW[how])
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
    assert refused == [size for size in range(33, 14, -1) if HOW[how](size)] != []


@pytest.mark.parametrize("how", FOLLOWED)
def test_what_is_followed_needs_no_checks(how: str) -> None:
    assert not planned(FOLLOWED[how])[2]
