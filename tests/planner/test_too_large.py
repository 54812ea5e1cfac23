"""Errors for models that are too large name the limit, instead of blaming the budget."""

from __future__ import annotations

import pytest

from remate.errors import NotApplicableError
from remate.strategy import Request, StepInstance, policy, solve

from .strategy_graphs import transformer


@pytest.mark.slow
def test_a_model_that_is_too_large_does_not_apply() -> None:
    instance, checkmate = StepInstance(transformer(14)), policy("checkmate")
    with pytest.raises(NotApplicableError, match=r"up to 9,000 variables with normal effort, .* about 90 operations"):
        solve(instance, Request(int(0.7 * instance.baseline.peak)), checkmate)
    small = StepInstance(transformer(1))
    assert solve(small, Request(small.baseline.peak - 1), checkmate).peak < small.baseline.peak
