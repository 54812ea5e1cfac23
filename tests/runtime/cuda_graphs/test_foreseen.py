"""What a step in graphs is predicted to hold, of files that are for a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remate_runtime import EngineError, Schedule
from remate_runtime.applied import peak_by_engine
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.link.simulator import simulate
from remate_runtime.link.verifier import verify

from ..small import Layers, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes

_PAGES = 8 * (20 << 20)  # bytes by which segments of the allocator may exceed their contents


def for_cuda(recomputes: Any) -> Schedule:
    schedule = in_blocks(seeded(Layers()), (data(1 << 16, 64),), recomputes)
    moved = replace(schedule, model=replace(schedule.model, device="cuda"))
    return replace(moved, model=replace(moved.model, fingerprint=fingerprint(moved)))


@pytest.mark.quick("just_in_time")
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
def test_the_pool_and_what_is_copied_out_of_it(recomputes: Any) -> None:
    schedule = for_cuda(recomputes)
    given = (1 << 16) * 64 * 4
    gradients = 6 * 64 * 64 * 4
    consumed = simulate(verify(schedule).linked, "consumed").peak
    predicted = peak_by_engine(schedule, "eager", cuda_graphs=True)
    assert consumed + given + gradients <= predicted <= consumed + given + gradients + _PAGES


def test_there_are_graphs_on_cuda_alone() -> None:
    schedule = in_blocks(seeded(Layers()), (data(16, 64),), no_recomputes)
    with pytest.raises(EngineError, match="this one is on cpu"):
        peak_by_engine(schedule, "eager", cuda_graphs=True)


def test_what_cannot_be_compiled_here_says_so() -> None:
    with pytest.raises(EngineError, match="there is no CUDA device"):
        peak_by_engine(for_cuda(no_recomputes), "compiled", cuda_graphs=True)
