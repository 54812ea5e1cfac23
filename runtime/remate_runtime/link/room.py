"""Which recomputations a budget seems to have room to leave out, without a simulation. Does not require torch.

A recomputed value has several live ranges. Between them its bytes are free, and a kept value fills these gaps. This is
an estimate, as values that are kept only for recomputations, workspaces and in-place runs also change. A simulation
decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .events import Linked, RecomputeRun, Run
from .levels import MemoryLevels
from .recompute_order import RecomputeGroup
from .simulator import Timeline

_Gaps = list[tuple[int, int, int]]  # (first event, end, bytes that are free there)


def affordable(
    order: Sequence[RecomputeGroup], linked: Linked, timeline: Timeline, budget: int
) -> list[RecomputeGroup]:
    """Return the groups that can be left out together if memory grows as expected, the first ones preferred.

    Args:
        order: Groups of recomputations of the step.
        linked: The step with all of them.
        timeline: Its memory; within the budget.
        budget: In bytes.
    """
    levels = MemoryLevels([held + timeline.beside for held in timeline.during])
    gaps = _gaps(linked)
    chosen: list[RecomputeGroup] = []
    for group in order:
        kept = [gap for op in group.ops for gap in gaps.get(op, ())]
        _fill(levels, kept, group, 1)
        if levels.peak <= budget:
            chosen.append(group)
        else:
            _fill(levels, kept, group, -1)
    return chosen


def _fill(levels: MemoryLevels, gaps: _Gaps, group: RecomputeGroup, sign: int) -> None:
    """Add to the gaps of a group what it keeps, less what only the group reads."""
    net = max(0, group.figures[1])
    kept = sum(nbytes for _, _, nbytes in gaps)
    for start, end, nbytes in gaps:
        levels.add(start, end, sign * (min(nbytes, -(-nbytes * net // kept)) if kept else 0))


def _gaps(linked: Linked) -> dict[int, _Gaps]:
    """Return the gaps of each recomputed operation."""
    graph, lives = linked.graph, dict[tuple[int, int], int]()
    for allocation in linked.allocations:
        if allocation.value is not None:
            lives[allocation.value, allocation.birth] = allocation.death
    runs: dict[int, list[int]] = {}
    for at, event in enumerate(linked.events):
        if isinstance(event, Run | RecomputeRun):
            runs.setdefault(event.op, []).append(at)
    gaps: dict[int, _Gaps] = {}
    for op, births in runs.items():
        if len(births) > 1:
            results = [value for value in graph.operations[op].writes if value is not None]
            gaps[op] = [
                (lives.get((value, birth), birth + 1), again, graph.nbytes(value))
                for value in results
                for birth, again in itertools.pairwise(births)
            ]
    return gaps
