"""Expands and links the steps of a schedule at several sizes. Does not require torch.

The events of a step follow from its operations, its recomputations, and a few decisions that depend on sizes: which
arguments an operation may write over, which gradients are delivered together, and which tangents the caller holds.
Sizes with equal decisions have equal events. Such a step is linked once; at other sizes only the bytes differ.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..flat_step.expansion import Expanded, expand
from ..flat_step.graph import FlatRecompute, Graph
from ..flat_step.in_place import Overwritable, candidates, same_storage
from ..flat_step.resizing import Resizing
from ..format.schedule import Schedule
from ..support.once import once
from .events import Allocation, Linked
from .linker import link
from .peaks import Peaks
from .simulator import simulate

_KEPT = 24  # linked steps; beyond them, the least recently used one is dropped


class LinkedExpansion(NamedTuple):
    """A step with its events and its peak.

    Attributes:
        expanded: The step. Recomputations and pages are those of `linked`.
        linked: Its events.
        peak: As simulated.
    """

    expanded: Expanded
    linked: Linked
    peak: int


class SizedLinks:
    """The steps of a schedule at sizes so far, linked if they have no pages and splits.

    All graphs must be of this schedule. Results do not depend on earlier calls.
    """

    def __init__(self) -> None:
        self._resizing: Resizing | None = None
        self._deciding: _Deciding | None = None
        self._linked: OrderedDict[Any, tuple[Linked, Callable[[], Peaks]]] = OrderedDict()
        self._rungs: dict[int, Sequence[FlatRecompute]] = {}

    @property
    def types(self) -> tuple[int, ...]:
        """`Resizing.types` of the schedule; empty if it has splits."""
        return () if self._resizing is None else self._resizing.types

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
        expanded = None if self._resizing is None else self._resizing.at(schedule)
        if expanded is None:
            expanded = expand(schedule)
        if self._resizing is None and not expanded.splits:
            self._resizing = Resizing(schedule, expanded)
        return expanded

    def link(self, expanded: Expanded, recomputes: Sequence[FlatRecompute]) -> LinkedExpansion:
        """Return what `link` and `simulate` return.

        Args:
            expanded: The step. With pages, it is always linked alone.
            recomputes: Its recomputations, in execution order.
        """
        graph = expanded.graph
        if expanded.pages:
            linked = link(graph, recomputes, expanded.pages)
            return LinkedExpansion(expanded, linked, simulate(linked).peak)
        key = tuple(recomputes), self._decisions(graph)
        known = self._linked.get(key)
        if known is None:
            linked = link(graph, recomputes)
            self._keep(key, linked)
            return LinkedExpansion(expanded, linked, simulate(linked).peak)
        self._linked.move_to_end(key)
        before, peaks = known
        linked = _at(before, graph)
        return LinkedExpansion(expanded, linked, peaks().of(linked))

    def add(self, step: LinkedExpansion, recomputes: Sequence[FlatRecompute]) -> None:
        """Keep a step without pages that was linked elsewhere."""
        key = tuple(recomputes), self._decisions(step.expanded.graph)
        if key not in self._linked:
            self._keep(key, step.linked)

    def _keep(self, key: Any, linked: Linked) -> None:
        self._linked[key] = linked, once(partial(Peaks, linked))  # at a second size
        if len(self._linked) > _KEPT:
            self._linked.popitem(last=False)

    def _decisions(self, graph: Graph) -> tuple[Any, ...]:
        """Return everything of a step's sizes that its events depend on."""
        if self._deciding is None:
            self._deciding = _deciding(graph, self.types or range(len(graph.values)))
        nbytes = graph.storage_bytes
        return (
            bytes(same_storage(graph, candidate) for candidate in self._deciding.candidates),
            tuple(nbytes[value] for value in self._deciding.gradients),
            tuple(map(graph.held_by_caller, self._deciding.tangents)),
        )


class _Deciding(NamedTuple):
    """Values whose sizes decide the events of a step, one of all that have equal types.

    Attributes:
        candidates: Arguments that an operation may write over.
        gradients: Gradients of sources.
        tangents: Gradients of outputs.
    """

    candidates: tuple[Overwritable, ...]
    gradients: tuple[int, ...]
    tangents: tuple[int, ...]


def _deciding(graph: Graph, types: Sequence[int]) -> _Deciding:
    """Return the deciding values. types: as in `Resizing`."""

    def stored(value: int) -> tuple[int, int]:
        return types[value], types[graph.root[value]]

    arguments = {(stored(each.taken), stored(each.result)): each for each in candidates(graph)}
    gradients = {stored(value)[1]: value for _, value in graph.gradients}
    tangents = tuple(at for at, value in enumerate(graph.values) if value.kind == "tangent")
    return _Deciding(tuple(arguments.values()), tuple(gradients.values()), tangents)


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
