"""What forward does with quotients and rests of sizes without a comparison: right at every size, refused, or checked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remate
from remate import DimsError
from remate_runtime import StaleModelError, apply
from remate_runtime.format import Schedule

Body = Callable[[Any, Tensor], Tensor]


class Quotients(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(4, 4), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.linear(x)).square().sum()


def repeated(self: Any, x: Tensor) -> Tensor:
    for _ in range(x.shape[0] % 3):
        x = torch.tanh(self.linear(x))
    return x


def repeated_by_distance(self: Any, x: Tensor) -> Tensor:
    for _ in range(abs(x.shape[0] - 12) // 16 + 1):
        x = torch.tanh(self.linear(x))
    return x


def chosen(self: Any, x: Tensor) -> Tensor:
    return x * [0.5, 0.5, 2.0, 0.5][x.shape[0] % 4]


def scaled(self: Any, x: Tensor) -> Tensor:
    return x * (x.shape[0] % 3 + 1)


def scaled_by_rows(self: Any, x: Tensor) -> Tensor:
    return x * (60 // x.shape[0])


def scaled_by_distance(self: Any, x: Tensor) -> Tensor:
    return x + abs(x.shape[0] - 20)


def padded(self: Any, x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[0] % 8)).unflatten(0, (-1, 8)).sum(1)


def grouped(self: Any, x: Tensor) -> Tensor:
    return x * (x.shape[0] // 8 + 1)


def unused(self: Any, x: Tensor) -> Tensor:
    _ = x.shape[0] % 7 * x.shape[0] // 5
    return x


def turning(self: Any, x: Tensor) -> Tensor:
    at = 0
    for _ in range(1500):
        at = (at + 1) % x.shape[0]
    return x


def counting(self: Any, x: Tensor) -> Tensor:
    total = x.shape[0]
    for _ in range(1500):
        total = total + x.shape[0]
    return x * 2 if total < 0 else x


def planned(body: Body, rows: int, least: int = 3) -> tuple[nn.Module, Schedule]:
    model = Quotients(body)
    options: Any = {"budget": "100%", "cost": "cpu", "effort": "quick", "dims": {"x": {0: f"n={least}..40"}}}
    schedule = remate.plan(model, (torch.randn(rows, 4),), **options)
    assert isinstance(schedule, Schedule)
    return model, schedule


@pytest.mark.parametrize("rows", [30, pytest.param(31, marks=pytest.mark.slow), 32])
@pytest.mark.parametrize(
    "body",
    [repeated, repeated_by_distance, chosen, scaled, scaled_by_rows, scaled_by_distance],
    ids=lambda f: f.__name__,
)
def test_no_size_computes_anything_else(body: Body, rows: int) -> None:
    """All trace samples had one remainder, so files had it as a constant: 20 of 30 sizes computed something else."""
    try:
        eager, schedule = planned(body, rows)
    except DimsError:
        return
    model = apply(copy.deepcopy(eager), schedule)
    for size in range(40, 2, -1):
        x = torch.randn(size, 4)
        try:
            loss = model(x)
        except StaleModelError:
            assert schedule.model.untracked_sizes
        else:
            assert torch.equal(loss, eager(x)), size


def test_a_remainder_among_the_arguments_is_refused_with_its_line() -> None:
    with pytest.raises(
        DimsError, match=r"a number among the arguments of aten\.mul\.\w+ \(test_quotients\.py:.*in no way"
    ):
        planned(scaled, 32)


@pytest.mark.parametrize("body", [padded, grouped], ids=lambda f: f.__name__)
def test_quotients_that_a_file_can_state_need_no_checks(body: Body) -> None:
    eager, schedule = planned(body, 32, least=9)
    assert not schedule.model.untracked_sizes
    model = apply(copy.deepcopy(eager), schedule, verify="never")
    for size in range(9, 41):
        x = torch.randn(size, 4)
        assert torch.equal(model(x), eager(x)), size


def test_numbers_that_no_expression_gives_have_each_size_checked() -> None:
    assert planned(unused, 32)[1].model.untracked_sizes


@pytest.mark.parametrize("body", [turning, counting], ids=lambda f: f.__name__)
def test_long_chains_of_numbers_are_followed_for_a_while(body: Body) -> None:
    """Planning ended with a RecursionError."""
    eager, schedule = planned(body, 32)
    assert schedule.model.untracked_sizes
    model = apply(copy.deepcopy(eager), schedule)
    for size in (32, 17, 5):
        x = torch.randn(size, 4)
        assert torch.equal(model(x), eager(x))
