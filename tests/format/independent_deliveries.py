"""When gradients go to their owners, for the second simulator: from `schema/README.md` alone, nothing of remate
imported."""

from __future__ import annotations

from typing import Any


def deliveries_of(simulation: Any) -> dict[int, list[str]]:
    """The parameters and inputs whose gradients are delivered after each thing that runs, by its number."""
    backward_start: int = simulation.order.index(None)
    last: dict[str, int] = {}
    for at, index in enumerate(simulation.order):
        if isinstance(index, int) and at > backward_start:
            op = simulation.step.ops[index]
            last.update((simulation.root(value), at) for value in (*op.reads, *op.writes))
    first: dict[str, int] = {}  # the same in the step without recomputation, by operation
    for index, op in enumerate(simulation.step.ops):
        if index >= simulation.step.backward_start and not op.view:
            first.update((simulation.root(value), index) for value in (*op.reads, *op.writes))
    ends: dict[str, int] = {}
    for source, gradient in zip(simulation.of, simulation.gradients, strict=True):
        owner = simulation.root(gradient)
        ends[owner] = max(ends.get(owner, -1), first.get(owner, -1), first.get(simulation.root(source), -1))
    groups: list[list[str]] = [[]]
    owners: set[str] = set()
    for end in sorted(set(ends.values())):
        for source, gradient in zip(simulation.of, simulation.gradients, strict=True):
            if ends[simulation.root(gradient)] == end:
                groups[-1].append(source)
                owners.add(simulation.root(gradient))
        if sum(simulation._nbytes(owner) for owner in owners) >= 1 << 20:
            groups.append([])
            owners = set()
    groups = [group for group in groups if group]
    by_position: dict[int, list[str]] = {}
    for number, group in enumerate(groups):
        touched = [simulation.root(value) for source in group for value in (source, simulation.step.gradients[source])]
        behind = max(last.get(value, backward_start) for value in touched)
        at = behind if number + 1 < len(groups) else len(simulation.order) - 1
        by_position.setdefault(at, []).extend(group)
    return by_position
