"""Chooses a schedule for each kind of part, if several kinds share the memory of one step.

The memory of all parts is the sum of what their calls hold between forward and backward, plus the most that a running
call needs beyond that. So three figures describe a schedule: held bytes, working bytes and time. For each bound on the
working bytes, the fastest choice within the budget is a multiple-choice knapsack. It is solved over all known plans by
dynamic programming over the kinds (Kellerer, Pferschy & Pisinger, *Knapsack Problems*, 2004, section 11.5).
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
STATES = 200  # states of the knapsack after each kind; others are thinned out
BOUNDS = 40  # number of bounds on the working bytes


class PartChoice(msgspec.Struct, frozen=True):
    """A plan for all calls of a kind of part.

    Attributes:
        held: Most bytes that the calls hold between forward and backward, or as gradients.
        at_work: Bytes that a running call needs beyond that.
        time: Time of all calls, in ns.
        candidate: The plan.
    """

    held: int
    at_work: int
    time: int
    candidate: Candidate


class _CallState(NamedTuple):
    held: int
    time: int
    chosen: tuple[PartChoice, ...]


def choice_of(graph: Graph, candidate: Candidate) -> PartChoice:
    """The figures of a candidate for all calls of this graph."""
    linked = link(graph, candidate.recomputes)
    timeline, call = simulate(linked), resident_by_call(linked)
    held = call.by(graph.calls, graph.modules if graph.delivered == "retained" else 0)
    return PartChoice(held, timeline.peak - held, timeline.time * graph.calls, candidate)


def peak_of(chosen: Sequence[PartChoice]) -> int:
    """Peak of all parts together in bytes, as `remate_runtime.link.peak_together` counts."""
    return sum(plan.held for plan in chosen) + max(plan.at_work for plan in chosen)


def fastest(kinds: Sequence[Sequence[PartChoice]], budget: int) -> tuple[PartChoice, ...] | None:
    """The fastest choice of one plan per kind whose common peak is within the budget.

    Args:
        kinds: Plans of each kind.
        budget: Budget of all kinds together, in bytes.

    Returns:
        One plan per kind. Of equally fast choices, the one with the smallest peak. None if no choice fits.
    """
    choice = smallest(kinds)
    if peak_of(choice) > budget:
        return None
    for bound in _thinned(sorted({plan.at_work for kind in kinds for plan in kind}), BOUNDS):
        states = [_CallState(0, 0, ())]
        for kind in kinds:
            states = _merged(states, _allowed(kind, bound), budget - bound)
        if states:
            best = min(states, key=lambda state: (state.time, state.held)).chosen
            choice = min(choice, best, key=lambda plans: (sum(plan.time for plan in plans), peak_of(plans)))
    return choice


def smallest(kinds: Sequence[Sequence[PartChoice]]) -> tuple[PartChoice, ...]:
    """The choice with the smallest common peak."""
    choices: list[tuple[PartChoice, ...]] = []
    for bound in sorted({plan.at_work for kind in kinds for plan in kind}):
        allowed = [[plan for plan in kind if plan.at_work <= bound] for kind in kinds]
        if all(allowed):
            choices.append(tuple(min(kind, key=lambda plan: (plan.held, plan.time)) for kind in allowed))
    return min(choices, key=peak_of)


def _allowed(kind: Sequence[PartChoice], bound: int) -> list[PartChoice]:
    """The undominated plans whose working bytes are within a bound."""
    within = sorted((plan for plan in kind if plan.at_work <= bound), key=lambda plan: plan.at_work)
    return undominated(within, lambda plan: (plan.held, plan.time))


def _merged(states: Sequence[_CallState], choices: Iterable[PartChoice], limit: int) -> list[_CallState]:
    """All combinations of states and plans within the limit, without dominated ones."""
    merged = [
        _CallState(state.held + plan.held, state.time + plan.time, (*state.chosen, plan))
        for plan in choices
        for state in states
        if state.held + plan.held <= limit
    ]
    return _thinned(undominated(merged, lambda state: (state.held, state.time)), STATES)


def _thinned(given: list[Some], count: int) -> list[Some]:
    """Evenly chosen items, at most `count`, including the first and the last."""
    if len(given) <= count:
        return given
    return [given[at * (len(given) - 1) // (count - 1)] for at in range(count)]
