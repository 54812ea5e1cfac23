"""Where the memory of a schedule goes: the largest values at the peak, and what a larger budget would allow."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.link import Allocation

from .analysis import Analysis, held_at, pattern, unnamed
from .explain import Moment, moment
from .roles import Roles
from .steps import StepPositions
from .what_if import ALLOWANCE, TrialResult, Trials

COSTLIEST = 10


class Costly(msgspec.Struct, frozen=True):
    """Values at the peak that differ only in the numbers of their names. state: kept | recompute | in use | output |
    gradient | backward | tangent | generator state | buffer copy.

    other: keep | recompute, the opposite of the current choice for all of them, and the cost of the step with it (null:
    no other choice, or not tried).
    """

    name: str
    type: str
    count: int
    nbytes: int
    state: str
    other: str | None
    peak: int | None
    time: int | None


class Purchase(msgspec.Struct, frozen=True):
    """The gain from `extra` bytes beyond the budget. keep: operations to keep, in groups. everything: all
    recomputations can be dropped."""

    extra: int
    keep: tuple[tuple[str, int], ...]
    peak: int
    time: int
    recomputes: int
    everything: bool


class Overview(msgspec.Struct, frozen=True):
    peak: Moment
    peak_bytes: int
    time: int
    costliest: tuple[Costly, ...]
    more: Purchase | None  # None: nothing is recomputed


def overview(opened: Analysis, extra: int | None = None) -> Overview:
    """Find the largest values at the peak, and what a larger budget allows. extra: additional bytes; None: a tenth of
    the baseline's peak."""
    if extra is None:
        extra = opened.baseline.peak // 10
    steps = StepPositions(opened)
    more = _purchase(opened, steps, Trials(opened, ALLOWANCE // 2), extra)
    costliest = _costliest(opened, steps, Trials(opened, ALLOWANCE // 2))
    return Overview(moment(opened), opened.timeline.peak, opened.timeline.time, costliest, more)


def _costliest(opened: Analysis, steps: StepPositions, trials: Trials) -> tuple[Costly, ...]:
    graph, at, roles = opened.graph, opened.timeline.peak_at, Roles(opened)
    groups: dict[tuple[str, str, str], list[tuple[Allocation, int | None]]] = {}
    for allocation in held_at(opened, at):
        value = _content(opened, allocation, at)
        about = None if value is None else graph.values[value]
        name, kind = (about.name, str(about.type)) if about else (unnamed(allocation), "")
        groups.setdefault((pattern(name), kind, roles.role(allocation, value)), []).append((allocation, value))
    ranked = sorted(groups.items(), key=lambda g: (-sum(h.nbytes for h, _ in g[1]), g[0]))[:COSTLIEST]
    costliest: list[Costly] = []
    for (name, kind, state), held in ranked:
        other, outcome = _other(steps, trials, state, [value for _, value in held if value is not None])
        cost = (outcome.peak, outcome.time) if outcome else (None, None)
        costliest.append(Costly(name, kind, len(held), sum(h.nbytes for h, _ in held), state, other, *cost))
    return tuple(costliest)


def _content(opened: Analysis, allocation: Allocation, position: int) -> int | None:
    return [value for start, value in opened.contents[allocation] if start <= position][-1]


def _other(
    steps: StepPositions, trials: Trials, state: str, values: list[int]
) -> tuple[str | None, TrialResult | None]:
    producers = {steps.graph.values[value].producer for value in values}
    if state == "recompute":
        return "keep", trials.keeping(producers)
    if state != "kept":
        return None, None
    more: list[FlatRecompute] = []
    for op in sorted(producers):
        point = steps.first_backward_read(op)
        if point >= 0 and steps.first_run[point] > steps.opened.timeline.peak_at:
            more += [FlatRecompute(i, point) for i in steps.closure(op, point)]
    return ("recompute", trials.recomputing(dict.fromkeys(more))) if more else (None, None)


def _purchase(opened: Analysis, steps: StepPositions, trials: Trials, extra: int) -> Purchase | None:
    if not opened.expanded.recomputes:
        return None
    limit = max(opened.schedule.solve.budget, opened.timeline.peak) + extra
    graph = opened.graph
    if opened.baseline.peak <= limit:
        keep = tuple(_grouped(opened, list(steps.recomputes_of)))
        return Purchase(extra, keep, opened.baseline.peak, opened.baseline.time, 0, True)
    ranked = sorted(
        (op for op in steps.recomputes_of if graph.operations[op].ns),
        key=lambda op: (-graph.operations[op].ns * len(steps.recomputes_of[op]) / max(steps.nbytes(op), 1), op),
    )
    chosen, best = _longest(ranked, limit, trials)
    if best is None:
        return Purchase(extra, (), opened.timeline.peak, opened.timeline.time, len(opened.expanded.recomputes), False)
    return Purchase(extra, tuple(_grouped(opened, chosen)), best.peak, best.time, best.recomputes, False)


def _longest(ranked: list[int], limit: int, trials: Trials) -> tuple[list[int], TrialResult | None]:
    """Bisect for the number of first operations of `ranked` that can be kept within `limit`."""
    low, high, best = 0, len(ranked), None
    while low < high and trials.left > 0:
        middle = (low + high + 1) // 2
        outcome = trials.keeping(set(ranked[:middle]))
        if outcome is not None and outcome.peak <= limit:
            low, best = middle, outcome
        else:
            high = middle - 1
    return ranked[:low], best


def _grouped(opened: Analysis, operations: list[int]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for op in operations:
        name = pattern(opened.graph.operations[op].id)
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
