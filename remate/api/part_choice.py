"""Which schedule each kind of part gets, where several kinds share the memory of one step.

What all parts hold together is what each kind's calls hold between forward and backward, and what the one at work takes
beyond its own share of that. So schedules of a kind differ in three figures, and the fastest choice within a budget is a
multiple-choice knapsack for each bound on the last of them. It is solved over what searches have found, by dynamic programming
over the kinds (Kellerer, Pferschy & Pisinger, *Knapsack Problems*, 2004, section 11.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from remate_runtime.link import held_by_call, link, simulate
from remate_runtime.step import Graph

from ..strategy import Candidate
from ..strategy.pareto import undominated

Some = TypeVar("Some")
STATES = 200  # of the knapsack behind each kind; what is left out lies close to others
BOUNDS = 40  # on what is at work, that are tried


class Choice(msgspec.Struct, frozen=True):
    """A schedule as all calls of its kind. held: bytes between forward and backward, or of gradients, at most. at_work: bytes
    that a call at work takes beyond that. time: ns of all calls."""

    held: int
    at_work: int
    time: int
    candidate: Candidate


class _State(NamedTuple):
    held: int
    time: int
    chosen: tuple[Choice, ...]


def choice_of(graph: Graph, candidate: Candidate) -> Choice:
    """What a candidate is for the calls of this graph, which say how often it is called."""
    linked = link(graph, candidate.reruns)
    timeline, call = simulate(linked), held_by_call(linked)
    held = call.by(graph.calls, graph.modules if graph.delivered == "held" else 0)
    return Choice(held, timeline.peak - held, timeline.time * graph.calls, candidate)


def peak_of(chosen: Sequence[Choice]) -> int:
    """Bytes of all parts together, as `remate_runtime.link.peak_together` counts them."""
    return sum(one.held for one in chosen) + max(one.at_work for one in chosen)


def fastest(kinds: Sequence[Sequence[Choice]], budget: int) -> tuple[Choice, ...] | None:
    """The fastest choice of one schedule for each kind within `budget` bytes, all together; of equally fast ones, that with the
    smallest peak. None where nothing fits."""
    found = smallest(kinds)
    if peak_of(found) > budget:
        return None
    for bound in _thinned(sorted({one.at_work for kind in kinds for one in kind}), BOUNDS):
        states = [_State(0, 0, ())]
        for kind in kinds:
            states = _merged(states, _allowed(kind, bound), budget - bound)
        if states:
            best = min(states, key=lambda state: (state.time, state.held)).chosen
            found = min(found, best, key=lambda one: (sum(part.time for part in one), peak_of(one)))
    return found


def smallest(kinds: Sequence[Sequence[Choice]]) -> tuple[Choice, ...]:
    """The choice with the least peak of all together."""
    found: list[tuple[Choice, ...]] = []
    for bound in sorted({one.at_work for kind in kinds for one in kind}):
        allowed = [[one for one in kind if one.at_work <= bound] for kind in kinds]
        if all(allowed):
            found.append(tuple(min(kind, key=lambda one: (one.held, one.time)) for kind in allowed))
    return min(found, key=peak_of)


def _allowed(kind: Sequence[Choice], bound: int) -> list[Choice]:
    """Those that take no more at work, without those that hold more and are no faster than another one."""
    within = sorted((one for one in kind if one.at_work <= bound), key=lambda one: one.at_work)
    return undominated(within, lambda one: (one.held, one.time))


def _merged(states: Sequence[_State], choices: Iterable[Choice], limit: int) -> list[_State]:
    """Every state with every choice, those that another one beats in both figures left out."""
    made = [
        _State(state.held + one.held, state.time + one.time, (*state.chosen, one))
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
