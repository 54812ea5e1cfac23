"""The last possible uses of operations and storages, for programs with a stage for every operation."""

from __future__ import annotations

import msgspec

from ..instance import StepInstance


class Horizon(msgspec.Struct, frozen=True):
    """The last uses of operations and storages. Executed operations are numbered in step order.

    Attributes:
        operations: Indices of the operations in the graph.
        last: By operation, the last stage that may need its results.
        until: By storage, the last stage that may need it.
        again: By operation, whether it may run again.
        pinned: By storage, the stage from whose beginning it must be held.
    """

    operations: tuple[int, ...]
    last: tuple[int, ...]
    until: dict[int, int]
    again: tuple[bool, ...]
    pinned: dict[int, int]

    @property
    def variables(self) -> int:
        """Return about how many variables the model has."""
        return sum(3 * (last - i) for i, last in enumerate(self.last) if last > i)


def horizon(instance: StepInstance) -> Horizon:
    """Return the last possible uses of each operation and storage."""
    problem = instance.problem
    operations = tuple(i for i, real in enumerate(problem.real) if real)
    number = {i: n for n, i in enumerate(operations)}
    again = tuple(i < problem.backward_start and i not in problem.once for i in operations)
    backward_start = next((n for n, i in enumerate(operations) if i >= problem.backward_start), len(operations))
    end, until, pinned = len(operations), dict[int, int](), dict[int, int]()
    last = list(range(end))
    for s in problem.pinned:
        pinned[s] = backward_start if s in problem.returned and problem.producer[s] < problem.backward_start else end
    pinned |= {s: number.get(problem.held_until(s), end) for s in problem.delivery}
    for s in problem.until_backward_start - problem.pinned:
        pinned[s] = backward_start
    for n in range(end - 1, -1, -1):
        for s in problem.writes[operations[n]]:
            readers = [number[i] for i in problem.readers[s]]
            wanted = [last[k] if again[k] else k for k in readers]
            held = end if s in problem.pinned and s not in problem.delivery else pinned.get(s, n)
            until[s] = max([n, *wanted, held])
            last[n] = max(last[n], until[s])
    return Horizon(operations, tuple(last), until, again, pinned)
