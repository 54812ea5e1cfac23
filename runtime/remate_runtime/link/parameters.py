"""Memory of parameters, which counts for the peak if some of them are paged. Does not require torch."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..flat_step.graph import DEVICE, Graph
from ..format.vocabulary import PageMemory
from .events import PAGED_TO, Allocation, Linked, PageBack, PageGone


def with_parameters(linked: Linked) -> Linked:
    """Return the step with allocations of its parameters, if it pages any.

    Each stretch in which a parameter is on the device is an allocation, and so is the copy of a paged parameter in
    another memory.
    """
    if not linked.parameters_paged:
        return linked
    return replace(linked, allocations=(*linked.allocations, *_stretches(linked)))


def parameter_bytes(graph: Graph) -> int:
    """Return the bytes of all parameters on the device."""
    return sum(graph.nbytes(value) for value in _on_device(graph))


def _on_device(graph: Graph) -> list[int]:
    return [
        value for value, about in enumerate(graph.values) if about.kind == "parameter" and graph.memory(value) == DEVICE
    ]


def _stretches(linked: Linked) -> Iterator[Allocation]:
    graph, end = linked.graph, len(linked.events)
    here: dict[int, int] = dict.fromkeys(_on_device(graph), 0)  # position since which each is on the device
    moved: dict[int, tuple[int, PageMemory]] = {  # by paged parameter, its first move
        event.value: (at, event.to)
        for at, event in reversed(list(enumerate(linked.events)))
        if isinstance(event, PageBack | PageGone) and event.value in here
    }
    for value, (at, to) in moved.items():
        if isinstance(linked.events[at], PageBack):  # away when the step begins
            del here[value]
        yield Allocation(value, graph.nbytes(value), 0, end, PAGED_TO[to])
    for at, event in enumerate(linked.events):
        if isinstance(event, PageBack) and event.value in moved:
            here[event.value] = at
        elif isinstance(event, PageGone) and event.value in here:
            yield Allocation(event.value, graph.nbytes(event.value), here.pop(event.value), at + 1, DEVICE)
    for value, since in here.items():
        yield Allocation(value, graph.nbytes(value), since, end, DEVICE)
