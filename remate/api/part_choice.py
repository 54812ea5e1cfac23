"""Which schedule each kind of part gets, where several kinds share the memory of one step.

What all parts hold together is what each kind's calls hold between forward and backward, and what the one at work takes
beyond its own share of that. So schedules of a kind differ in three figures, and the fastest choice within a budget is
a multiple-choice knapsack for each bound on the last of them. It is solved over what searches have found, by dynamic
programming over the kinds (Kellerer, Pferschy & Pisinger, *Knapsack Problems*, 2004, section 11.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from remate_runtime.flat_step import Graph
from remate_runtime.link import link, resident_by_call, simulate

from ..strategy import Candidate
from ..strategy.pareto import undominated

Some = TypeVar("Some")
STATES = 200  # of the knapsack behind each kind; what is left out lies close to others
BOUNDS = 40  # on what is at work, that are tried


class PartChoice(msgspec.Struct, frozen=True):
    """A schedule as all calls of its kind. held: bytes between forward and backward, or of gradients, at most. at_work:
    bytes that a call at work takes beyond that. time: ns of all calls."""

    held: int
    at_work: int
    time: int
    candidate: Candidate


class _CallState(NamedTuple):
    held: int
    time: int
    chosen: tuple[PartChoice, ...]


def choice_of(graph: Graph, candidate: Candidate) -> PartChoice:
    """What a candidate is for the calls of this graph, which say how often it is called."""
    linked = link(graph, candidate.recomputes)
    timeline, call = simulate(linked), resident_by_call(linked)
    held = call.by(graph.calls, graph.modules if graph.delivered == "retained" else 0)
    return PartChoice(held, timeline.peak - held, timeline.time * graph.calls, candidate)


def peak_of(chosen: Sequence[PartChoice]) -> int:
    """Bytes of all parts together, as `remate_runtime.link.peak_together` counts them."""
    return sum(one.held for one in chosen) + max(one.at_work for one in chosen)


def fastest(kinds: Sequence[Sequence[PartChoice]], budget: int) -> tuple[PartChoice, ...] | None:
    """The fastest choice of one schedule for each kind within `budget` bytes, all together; of equally fast ones, that
    with the smallest peak. None where nothing fits."""
    found = smallest(kinds)
    if peak_of(found) > budget:
        return None
    for bound in _thinned(sorted({one.at_work for kind in kinds for one in kind}), BOUNDS):
        states = [_CallState(0, 0, ())]
        for kind in kinds:
            states = _merged(states, _allowed(kind, bound), budget - bound)
        if states:
            best = min(states, key=lambda state: (state.time, state.held)).chosen
            found = min(found, best, key=lambda one: (sum(part.time for part in one), peak_of(one)))
    return found


def smallest(kinds: Sequence[Sequence[PartChoice]]) -> tuple[PartChoice, ...]:
    """The choice with the least peak of all together."""
    found: list[tuple[PartChoice, ...]] = []
    for bound in sorted({one.at_work for kind in kinds for one in kind}):
        allowed = [[one for one in kind if one.at_work <= bound] for kind in kinds]
        if all(allowed):
            found.append(tuple(min(kind, key=lambda one: (one.held, one.time)) for kind in allowed))
    return min(found, key=peak_of)


def _allowed(kind: Sequence[PartChoice], bound: int) -> list[PartChoice]:
    """Those that take no more at work, without those that hold more and are no faster than another one."""
    within = sorted((one for one in kind if one.at_work <= bound), key=lambda one: one.at_work)
    return undominated(within, lambda one: (one.held, one.time))


def _merged(states: Sequence[_CallState], choices: Iterable[PartChoice], limit: int) -> list[_CallState]:
    """Every state with every choice, those that another one beats in both figures left out."""
    made = [
        _CallState(state.held + one.held, state.time + one.time, (*state.chosen, one))
        for one in choices
        for state in states
        if state.held + one.held <= limit
    ]
    return _thinned(undominated(made, lambda state: (state.held, state.time)), STATES)


def _thinned(given: list[Some], count: int) -> list[Some]:
    """At most so many, the first and the last among them."""
    if len(given) <= count:
        return given
    return [given[at * (len(given) - 1) // (count - 1)] for at in range(count)]
