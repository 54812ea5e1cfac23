"""Which recomputations a budget seems to have room to leave out, without simulating any of them. Needs no torch.

What is recomputed lives several times, with gaps in which its bytes are free. Left out, it fills them. That is a guess:
what is kept for recomputations alone, workspaces and in-place runs change, too; a simulation says what is true.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .events import Linked, RecomputeRun, Run
from .levels import MemoryLevels
from .recompute_order import RecomputeGroup
from .simulator import Timeline

_Gaps = list[tuple[int, int, int]]  # from an event up to another, and the bytes that are free there


def affordable(
    order: Sequence[RecomputeGroup], linked: Linked, timeline: Timeline, budget: int
) -> list[RecomputeGroup]:
    """Those of the groups that can go together, the first ones first, if memory grows by what is expected.

    Args:
        order: Groups of recomputations of the step.
        linked: The step with all of them.
        timeline: Its memory; within the budget.
        budget: In bytes.
    """
    levels = MemoryLevels([held + timeline.beside for held in timeline.during])
    gaps = _gaps(linked)
    found: list[RecomputeGroup] = []
    for group in order:
        kept = [gap for op in group.ops for gap in gaps.get(op, ())]
        _fill(levels, kept, group, 1)
        if levels.peak <= budget:
            found.append(group)
        else:
            _fill(levels, kept, group, -1)
    return found


def _fill(levels: MemoryLevels, gaps: _Gaps, group: RecomputeGroup, sign: int) -> None:
    """What the group keeps less what only it read, spread over the gaps of all its storages."""
    net = max(0, group.figures[1])
    kept = sum(nbytes for _, _, nbytes in gaps)
    for start, end, nbytes in gaps:
        levels.add(start, end, sign * (min(nbytes, -(-nbytes * net // kept)) if kept else 0))


def _gaps(linked: Linked) -> dict[int, _Gaps]:
    """By operation that is recomputed."""
    graph, lives = linked.graph, dict[tuple[int, int], int]()
    for allocation in linked.allocations:
        if allocation.value is not None:
            lives[allocation.value, allocation.birth] = allocation.death
    runs: dict[int, list[int]] = {}
    for at, event in enumerate(linked.events):
        if isinstance(event, Run | RecomputeRun):
            runs.setdefault(event.op, []).append(at)
    found: dict[int, _Gaps] = {}
    for op, births in runs.items():
        if len(births) > 1:
            made = [value for value in graph.operations[op].writes if value is not None]
            found[op] = [
                (lives.get((value, birth), birth + 1), again, graph.nbytes(value))
                for value in made
                for birth, again in itertools.pairwise(births)
            ]
    return found
