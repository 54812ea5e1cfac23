"""Errors for models that are too large name the limit, instead of blaming the budget."""

from __future__ import annotations

import pytest

from remate.errors import NotApplicableError
from remate.strategy import Request, StepInstance, policy, solve

from .strategy_graphs import transformer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("staged", "solves models of up to 900"),
        ("checkmate", r"up to 9,000 variables with normal effort, which is about 90 operations"),
    ],
)
def test_a_model_that_is_too_large_does_not_apply(name: str, said: str) -> None:
    instance = StepInstance(transformer(14))
    with pytest.raises(NotApplicableError, match=said):
        solve(instance, Request(int(0.7 * instance.baseline.peak)), policy(name))
    small = StepInstance(transformer(1))
    assert solve(small, Request(small.baseline.peak - 1), policy(name)).peak < small.baseline.peak
