"""The schedule of a given size, with only the recomputations that its budget needs there. Does not require torch.

Recomputations that need each other are left out together, most saved time per kept byte first, as long as `affordable`
expects room for the kept values. A simulation confirms that the result is within the budget.

That takes seconds on a step of thousands of operations, and every plan needs instructions of its own. So it is done at
the planned size only, for a few budgets (`RUNGS`), when a plan is first needed. A size takes the plan for the share of
its memory that the budget leaves; if that exceeds the budget there, the plan for less memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ..flat_step.expansion import Expanded, expand
from ..flat_step.graph import FlatPage, FlatRecompute, Graph
from ..format.schedule import BASELINE, Instance, Page, Recompute, Schedule, Split
from ..format.substitution import PLANNED, at_size, checked_size
from .linker import link
from .recompute_order import RecomputeGroup, groups
from .room import affordable
from .simulator import Timeline, simulate
from .sizes import LinkedExpansion, SizedLinks

RUNGS = 16  # plans between that of the file and none; each costs a step of memory, and a set of instructions
_TRIES = 8  # attempts to leave several groups out at once


_Left = tuple[Sequence[FlatRecompute], LinkedExpansion]  # recomputations, and the step with them


class FittedSchedule(NamedTuple):
    """A schedule for a size.

    Attributes:
        schedule: It has no named sizes.
        dropped: Number of recomputations that were left out.
        planned: Number of recomputations of the file.
    """

    schedule: Schedule
    dropped: int
    planned: int


def fitted(schedule: Schedule, dims: Mapping[str, int] = PLANNED, links: SizedLinks | None = None) -> FittedSchedule:
    """Return the schedule at a size, without recomputations that the budget does not need there.

    At the planned size, and where it exceeds the budget, the plan is that of the file.

    Args:
        schedule: The schedule.
        dims: Sizes by name.
        links: Steps of this schedule at other sizes. They save time, and change no result.

    Raises:
        BindError: See `at_size`.
        ScheduleError: See `expand`.
    """
    return fitted_and_linked(schedule, dims, links)[0]


def fitted_and_linked(
    schedule: Schedule, dims: Mapping[str, int] = PLANNED, links: SizedLinks | None = None
) -> tuple[FittedSchedule, LinkedExpansion | None]:
    """Return the result of `fitted` and its linked step; None if nothing was linked.

    Args:
        schedule: The schedule.
        dims: Sizes by name.
        links: Steps of this schedule at other sizes.
    """
    plain = at_size(schedule, dims)
    expanded = expand(plain) if links is None else links.expand(plain)
    graph, recomputes = expanded.graph, expanded.recomputes
    declared = schedule.model.dims
    if not recomputes or all(n == declared[name].planned for name, n in checked_size(schedule.model, dims).items()):
        linked = None if links is None or expanded.splits else links.link(expanded, recomputes)
        return FittedSchedule(plain, 0, len(recomputes)), linked
    budget = min(plain.budget_of("eager"), plain.budget_of("compiled"))
    if expanded.splits or expanded.pages:  # their positions and times depend on sizes
        left, linked = _left(expanded, budget)
    else:
        left, linked = _left_by_rung(schedule, expanded, budget, links or SizedLinks())
    if len(left) == len(recomputes):
        return FittedSchedule(plain, 0, len(recomputes)), linked
    splits = (Split(split.operations, split.into) for split in expanded.splits)
    statements = (*splits, *_statements(graph, left), *_pages(graph, expanded.pages))
    fewer = replace(without_recomputes(plain), statements=statements)
    return FittedSchedule(fewer, len(recomputes) - len(left), len(recomputes)), linked


def _left_by_rung(schedule: Schedule, expanded: Expanded, budget: int, links: SizedLinks) -> _Left:
    """Return the recomputations of the rung that the budget suggests, or of one near it that is within the budget.

    None if the step without any is within the budget, all if they do not suffice.
    """

    def simulated(recomputes: Sequence[FlatRecompute]) -> _Left:
        return recomputes, links.link(expanded, recomputes)

    nothing = simulated(())
    if (most := nothing[1].peak) <= budget:
        return nothing
    best = simulated(expanded.recomputes)
    if (least := best[1].peak) > budget:
        return best
    low, high = 0, RUNGS  # `low` is within the budget, `high` is not
    while low < (at := min(high - 1, low + RUNGS * (budget - best[1].peak) // (most - least))):
        tried = simulated(links.rung(at, partial(_rung, schedule, at, links)))
        if tried[1].peak <= budget:
            low, best = at, tried
        else:
            high = at
    return best


def _rung(schedule: Schedule, at: int, links: SizedLinks) -> Sequence[FlatRecompute]:
    """Return the recomputations that the planned size needs with this share of the memory that the plan saves there."""
    expanded = links.expand(at_size(schedule))
    full, nothing = (links.link(expanded, recomputes) for recomputes in (expanded.recomputes, ()))
    left, linked = _fewer(full, full.peak + (nothing.peak - full.peak) * at // RUNGS)
    links.add(linked, left)
    return left


def _left(expanded: Expanded, budget: int) -> _Left:
    """Return the recomputations that the budget needs. Pages stay.

    None if the step without any is within the budget, all if they do not suffice.
    """
    nothing = _linked(expanded, ())[0]
    if nothing.peak <= budget:
        return (), nothing
    full = _linked(expanded, expanded.recomputes)[0]
    return (expanded.recomputes, full) if full.peak > budget else _fewer(full, budget)


def _linked(expanded: Expanded, recomputes: Sequence[FlatRecompute]) -> tuple[LinkedExpansion, Timeline]:
    linked = link(expanded.graph, recomputes, expanded.pages)
    timeline = simulate(linked)
    return LinkedExpansion(expanded, linked, timeline.peak), timeline


def _fewer(full: LinkedExpansion, budget: int) -> _Left:
    """Leave out as many groups of recomputations as seem to find room.

    What memory grows more than expected is expected from then on.

    Args:
        full: The step with all recomputations; within the budget.
        budget: In bytes.
    """
    expanded, left, step, timeline = full.expanded, full.expanded.recomputes, full, simulate(full.linked)

    def room(besides: int) -> list[RecomputeGroup]:
        return affordable(groups(expanded.graph, left), step.linked, timeline, budget - besides)

    unexpected, chosen = 0, room(0)
    for _ in range(_TRIES):
        if not chosen:
            break
        gone = frozenset[int]().union(*(group.ops for group in chosen))
        fewer = [recompute for recompute in left if recompute.op not in gone]
        tried, tried_timeline = _linked(expanded, fewer)
        if tried.peak <= budget:
            left, step, timeline = fewer, tried, tried_timeline
            chosen = room(unexpected)
            continue
        unexpected += tried.peak - budget
        less = room(unexpected)
        most = len(chosen) - 1 - len(chosen) // 8 if less else len(chosen) // 2
        chosen = less if 0 < len(less) < len(chosen) else chosen[:most]
    return left, step


def _statements(graph: Graph, recomputes: Sequence[FlatRecompute]) -> tuple[Recompute, ...]:
    operations = graph.operations
    return tuple(
        Recompute(tuple(operations[recompute.op].id for recompute in group), operations[before].id)
        for before, group in itertools.groupby(recomputes, key=lambda recompute: recompute.before)
    )


def _pages(graph: Graph, pages: Sequence[FlatPage]) -> tuple[Page, ...]:
    def point(at: int | None) -> str:
        return "" if at is None else graph.operations[at].id

    return tuple(
        Page((graph.values[page.value].name,), page.to, point(page.out), point(page.gone), point(page.back))
        for page in pages
    )


def without_recomputes(schedule: Schedule) -> Schedule:
    """Return the schedule with an empty plan."""
    blocks = {
        name: replace(block, plans={}, instances=_keeping(block.instances)) for name, block in schedule.blocks.items()
    }
    return replace(schedule, blocks=blocks, program=_keeping(schedule.program), statements=())


def _keeping(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    return tuple(replace(instance, plan=BASELINE) for instance in instances)
