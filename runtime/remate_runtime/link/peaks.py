"""The peak of a step at many sizes: only bytes differ, not when they are allocated. Does not require torch."""

from __future__ import annotations

from itertools import accumulate

from ..flat_step.graph import DEVICE
from .events import Linked, RecomputeRun, Run
from .simulator import allocations_of, memory_of_workspace, resident_by_call, simulate


class Peaks:
    """The peaks of a step with the same events at all sizes."""

    def __init__(self, linked: Linked) -> None:
        """Order what the step allocates and frees. linked: the step at one of the sizes."""
        graph, operations = linked.graph, linked.graph.operations
        runs = [(at, event.op) for at, event in enumerate(linked.events) if isinstance(event, Run | RecomputeRun)]
        runs = [(at, op) for at, op in runs if memory_of_workspace(graph, operations[op]) == DEVICE]
        self._computations = [op for _, op in runs]
        allocations, end = list(allocations_of(linked)), len(linked.events)
        # At each moment: what is freed, what is allocated, and workspaces, which are freed at once.
        born, died = [list[int]() for _ in range(end)], [list[int]() for _ in range(end + 1)]
        total = len(allocations) + len(runs)
        for number, allocation in enumerate(allocations):
            if allocation.memory == DEVICE and allocation.birth != allocation.death:
                born[allocation.birth].append(number)
                died[allocation.death].append(total + number)
        for number, (at, _) in enumerate(runs, len(allocations)):
            born[at].append(number)
            died[at + 1].insert(0, total + number)
        self._order: list[int] = [
            number for moment in zip(died, born, strict=False) for part in moment for number in part
        ]

    def of(self, linked: Linked) -> int:
        """Return the peak that `simulate` returns. linked: the step at any of the sizes."""
        if linked.gathers is not None:
            return simulate(linked).peak
        graph, operations = linked.graph, linked.graph.operations
        amounts = [allocation.nbytes for allocation in linked.allocations]
        amounts += [operations[op].workspace for op in self._computations]
        amounts += [-nbytes for nbytes in amounts]
        peak = max(accumulate(map(amounts.__getitem__, self._order)), default=0)
        if graph.calls == 1:
            return peak
        return peak + resident_by_call(linked).beside(graph, graph.delivered == "retained")
