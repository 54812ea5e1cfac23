"""The schedule of one size, with as much of its plan as its budget calls for there. Needs no torch.

Recomputations that need one another are left out together, those first that save most time for the bytes that are kept
instead, as long as `affordable` expects room for what is kept; what is left is within the budget by simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..flat_step.expansion import Expanded, expand
from ..flat_step.graph import FlatPage, FlatRecompute, Graph
from ..format.schedule import BASELINE, Instance, Page, Recompute, Schedule, Split
from ..format.substitution import PLANNED, at_size, checked_size
from .events import Linked
from .linker import link
from .recompute_order import groups
from .room import affordable
from .simulator import Timeline, simulate

_TRIES = 8  # of groups that go together


class LinkedExpansion(NamedTuple):
    """expanded: the step; its own recomputations and pages count no more than those that `linked` has."""

    expanded: Expanded
    linked: Linked
    timeline: Timeline


class FittedSchedule(NamedTuple):
    """schedule: a plain one. dropped: the recomputes that were left out, because what they save is not needed. planned:
    the recomputations of the file."""

    schedule: Schedule
    dropped: int
    planned: int


def fitted(schedule: Schedule, dims: Mapping[str, int] = PLANNED) -> FittedSchedule:
    """The schedule at a size, without recomputation that the budget does not call for there. At the size that was
    planned at the plan is what the file says, as in a file of one size; so it is where it exceeds the budget.

    Raises BindError and ScheduleError as `at_size` and `expand` do.
    """
    return fitted_and_linked(schedule, dims)[0]


def fitted_and_linked(
    schedule: Schedule, dims: Mapping[str, int] = PLANNED
) -> tuple[FittedSchedule, LinkedExpansion | None]:
    """`fitted`, and the step that it found, linked and simulated; None where it did not need to link any."""
    plain = at_size(schedule, dims)
    expanded = expand(plain)
    graph, recomputes = expanded.graph, expanded.recomputes
    declared = schedule.model.dims
    if not recomputes or all(n == declared[name].planned for name, n in checked_size(declared, dims).items()):
        return FittedSchedule(plain, 0, len(recomputes)), None
    budget = min(plain.budget_of("eager"), plain.budget_of("compiled"))
    left, made = _left(expanded, budget)
    if len(left) == len(recomputes):
        return FittedSchedule(plain, 0, len(recomputes)), made
    splits = (Split(one.operations, one.into) for one in expanded.splits)
    statements = (*splits, *_statements(graph, left), *_pages(graph, expanded.pages))
    found = replace(without_recomputes(plain), statements=statements)
    return FittedSchedule(found, len(recomputes) - len(left), len(recomputes)), made


def _left(expanded: Expanded, budget: int) -> tuple[Sequence[FlatRecompute], LinkedExpansion]:
    """What is left of the recomputes: none, if that is within the budget; all, if even these are not; else what is left
    when as many groups go, in their order, as seem to find room. Pages stay."""
    graph, left = expanded.graph, expanded.recomputes

    def simulated(those: Sequence[FlatRecompute]) -> LinkedExpansion:
        linked = link(graph, those, expanded.pages)
        return LinkedExpansion(expanded, linked, simulate(linked))

    made = simulated(())
    if made.timeline.peak <= budget:
        return (), made
    made = simulated(left)
    if made.timeline.peak > budget:
        return left, made
    chosen = affordable(groups(graph, left), made.linked, made.timeline, budget)
    for _ in range(_TRIES):
        if not chosen:
            break
        gone = frozenset[int]().union(*(group.ops for group in chosen))
        fewer = [one for one in left if one.op not in gone]
        tried = simulated(fewer)
        if tried.timeline.peak > budget:  # memory grew by more than what was expected
            chosen = chosen[: len(chosen) // 2]
            continue
        left, made = fewer, tried
        chosen = affordable(groups(graph, left), made.linked, made.timeline, budget)
    return left, made


def _statements(graph: Graph, recomputes: Sequence[FlatRecompute]) -> tuple[Recompute, ...]:
    ids = [op.id for op in graph.operations]
    return tuple(
        Recompute(tuple(ids[one.op] for one in group), ids[before])
        for before, group in itertools.groupby(recomputes, key=lambda one: one.before)
    )


def _pages(graph: Graph, pages: Sequence[FlatPage]) -> tuple[Page, ...]:
    def point(at: int | None) -> str:
        return "" if at is None else graph.operations[at].id

    return tuple(
        Page((graph.values[one.value].name,), one.to, point(one.out), point(one.gone), point(one.back)) for one in pages
    )


def without_recomputes(schedule: Schedule) -> Schedule:
    """The same step, everything kept."""
    blocks = {
        name: replace(block, plans={}, instances=_keeping(block.instances)) for name, block in schedule.blocks.items()
    }
    return replace(schedule, blocks=blocks, program=_keeping(schedule.program), statements=())


def _keeping(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    return tuple(replace(instance, plan=BASELINE) for instance in instances)
