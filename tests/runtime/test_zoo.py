"""Every architecture of the zoo: loss, gradients, buffers and generator of scheduled steps are eager's."""

from __future__ import annotations

import copy

import pytest

from remate.capture.capture_step import capture
from remate_runtime import apply

from ..models import SMALLEST, ZOO
from .stepping import assert_same, everything, just_in_time, no_recomputes, step, with_recomputes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["depthwise", "fourier", "gru", "moe", "state_space", "t5", "two_tower", "unet"])
def test_steps_equal_eager(name):
    case = ZOO[name]
    size = {} if name in ("t5", "two_tower") else SMALLEST[name]  # whose further layers share values or parameters
    eager, args, kwargs = case.build(**size)
    captured, fresh = capture(eager, args, kwargs), copy.deepcopy(eager)
    wanted = [step(eager, args, kwargs, seed) for seed in range(2)]
    for recomputes in (no_recomputes, everything, just_in_time):
        planned = apply(copy.deepcopy(fresh), with_recomputes(captured, recomputes))
        for seed, result in enumerate(wanted):
            assert_same(step(planned, args, kwargs, seed), result, case.tolerance)
    planned = apply(fresh, with_recomputes(captured, just_in_time), engine="arena")
    for seed, result in enumerate(wanted):  # the first run looks at every result
        assert_same(step(planned, args, kwargs, seed), result, case.tolerance)
