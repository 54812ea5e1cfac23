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
        events = enumerate(linked.events)
        runs = [(at, event.op) for at, event in events if type(event) is Run or type(event) is RecomputeRun]
        if graph.host != DEVICE:
            runs = [(at, op) for at, op in runs if memory_of_workspace(graph, operations[op]) == DEVICE]
        self._computations = [op for _, op in runs]
        allocations = list(allocations_of(linked))
        # At each moment: what is freed, then what is allocated, and workspaces, which are freed at once. One integer
        # each, in this order: the remainder is the number of the amount.
        total = len(allocations) + len(runs)
        allocated, moment = 2 * total, 4 * total
        order: list[int] = []
        for number, allocation in enumerate(allocations):
            if allocation.memory == DEVICE and allocation.birth != allocation.death:
                order.append(allocation.birth * moment + allocated + number)
                order.append(allocation.death * moment + total + number)
        order += [at * moment + allocated + number for number, (at, _) in enumerate(runs, len(allocations))]
        order += [(at + 1) * moment + total + number for number, (at, _) in enumerate(runs, len(allocations))]
        self._order = [code % allocated for code in sorted(order)] if order else []

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
