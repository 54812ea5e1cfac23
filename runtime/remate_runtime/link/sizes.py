"""Expands and links the steps of a schedule at several sizes. Does not require torch.

The events of a step follow from its operations, its recomputations, and a few decisions that depend on sizes: which
arguments an operation may write over, which gradients are delivered together, and which tangents the caller holds.
Sizes with equal decisions have equal events. Such a step is linked once; at other sizes only the bytes differ.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from ..flat_step.expansion import Expanded, expand
from ..flat_step.graph import FlatPage, FlatRecompute, Graph
from ..flat_step.in_place import Overwritable, candidates, same_storage
from ..flat_step.resizing import resized
from ..format.schedule import Schedule
from .events import Allocation, Linked
from .linker import link

_KEPT = 24  # linked steps; beyond them, the least recently used one is dropped


class SizedLinks:
    """The steps of a schedule at sizes so far, linked if they have no pages and splits.

    All graphs must be of this schedule. Results do not depend on earlier calls.
    """

    def __init__(self) -> None:
        self._expanded: Expanded | None = None  # at the first size
        self._candidates: tuple[Overwritable, ...] | None = None
        self._tangents: tuple[int, ...] = ()
        self._linked: OrderedDict[Any, Linked] = OrderedDict()
        self._rungs: dict[int, Sequence[FlatRecompute]] = {}

    def rung(self, at: int, make: Callable[[], Sequence[FlatRecompute]]) -> Sequence[FlatRecompute]:
        """Return what `make` returned when it was first called for this number."""
        if at not in self._rungs:
            self._rungs[at] = make()
        return self._rungs[at]

    def expand(self, schedule: Schedule) -> Expanded:
        """Return what `expand` returns.

        Args:
            schedule: The schedule at a size (`at_size`).

        Raises:
            ScheduleError: See `expand`.
        """
        expanded = None if self._expanded is None else resized(self._expanded, schedule)
        if expanded is None:
            expanded = expand(schedule)
        if self._expanded is None:
            self._expanded = expanded
        return expanded

    def link(self, graph: Graph, recomputes: Sequence[FlatRecompute], pages: Sequence[FlatPage] = ()) -> Linked:
        """Return what `link` returns.

        Args:
            graph: The step.
            recomputes: Its recomputations, in execution order.
            pages: Its pages. With pages, the step is always linked.
        """
        if pages:
            return link(graph, recomputes, pages)
        key = tuple(recomputes), self._decisions(graph)
        linked = self._linked.get(key)
        if linked is None:
            linked = self._linked[key] = link(graph, recomputes)
            if len(self._linked) > _KEPT:
                self._linked.popitem(last=False)
            return linked
        self._linked.move_to_end(key)
        return _at(linked, graph)

    def _decisions(self, graph: Graph) -> tuple[Any, ...]:
        """Return everything of a step's sizes that its events depend on."""
        if self._candidates is None:
            self._candidates = candidates(graph)
            self._tangents = tuple(at for at, value in enumerate(graph.values) if value.kind == "tangent")
        nbytes = graph.storage_bytes
        return (
            bytes(same_storage(graph, candidate) for candidate in self._candidates),
            tuple(nbytes[value] for _, value in graph.gradients),
            tuple(map(graph.held_by_caller, self._tangents)),
        )


def _at(linked: Linked, graph: Graph) -> Linked:
    """Return a step with the bytes of the same step at a different size."""
    nbytes = graph.storage_bytes

    def sized(allocation: Allocation) -> Allocation:
        value = allocation.value
        if value is None:  # a state of the generator
            return allocation
        size = graph.nbytes_of_copy(value) if allocation.copied else nbytes[value]
        return allocation if size == allocation.nbytes else replace(allocation, nbytes=size)

    return replace(linked, graph=graph, allocations=tuple(map(sized, linked.allocations)))
