"""What a step in graphs is foreseen to hold, of files that are for a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remate_runtime import EngineError, Schedule
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.link.simulator import simulate
from remate_runtime.link.verifier import verify
from remate_runtime.planned import peak_by_engine

from ..small import Layers, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_reruns

_PAGES = 8 * (20 << 20)  # bytes that segments of the allocator may be larger than what lies in them


def for_cuda(reruns: Any) -> Schedule:
    schedule = in_blocks(seeded(Layers()), (data(1 << 16, 64),), reruns)
    moved = replace(schedule, model=replace(schedule.model, device="cuda"))
    return replace(moved, model=replace(moved.model, fingerprint=fingerprint(moved)))


@pytest.mark.parametrize("reruns", [no_reruns, everything, just_in_time])
def test_the_pool_and_what_is_copied_out_of_it(reruns: Any) -> None:
    schedule = for_cuda(reruns)
    given = (1 << 16) * 64 * 4
    gradients = 6 * 64 * 64 * 4
    consumed = simulate(verify(schedule).linked, "consumed").peak
    foreseen = peak_by_engine(schedule, "eager", cuda_graphs=True)
    assert consumed + given + gradients <= foreseen <= consumed + given + gradients + _PAGES


def test_there_are_graphs_on_cuda_alone() -> None:
    schedule = in_blocks(seeded(Layers()), (data(16, 64),), no_reruns)
    with pytest.raises(EngineError, match="this one is on cpu"):
        peak_by_engine(schedule, "eager", cuda_graphs=True)


def test_what_cannot_be_compiled_here_says_so() -> None:
    with pytest.raises(EngineError, match="there is no CUDA device"):
        peak_by_engine(for_cuda(no_reruns), "compiled", cuda_graphs=True)
