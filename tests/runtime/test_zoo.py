"""Every architecture of the zoo: loss, gradients, buffers and generator of scheduled steps are eager's."""

from __future__ import annotations

import copy

import pytest

from remate_runtime import apply

from ..models import ZOO
from .stepping import assert_same, everything, just_in_time, no_recomputes, schedule_of, step


@pytest.mark.slow
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_steps_equal_eager(name, recomputes):
    case = ZOO[name]
    model, args, kwargs = case.build()
    schedule = schedule_of(model, args, kwargs, recomputes)
    eager, planned = model, apply(copy.deepcopy(model), schedule)
    for seed in range(2):
        assert_same(step(planned, args, kwargs, seed), step(eager, args, kwargs, seed), case.tolerance)
