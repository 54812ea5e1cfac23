"""The schedule of a given size, with only the recomputations that its budget needs there. Does not require torch.

Recomputations that need each other are left out together, most saved time per kept byte first, as long as `affordable`
expects room for the kept values. A simulation confirms that the result is within the budget.
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
from .recompute_order import groups
from .room import affordable
from .simulator import Timeline, simulate
from .sizes import SizedLinks

_TRIES = 8  # attempts to leave several groups out at once


class LinkedExpansion(NamedTuple):
    """A step with its events and its cost.

    Attributes:
        expanded: The step. Recomputations and pages are those of `linked`.
        linked: Its events.
        timeline: Its cost.
    """

    expanded: Expanded
    linked: Linked
    timeline: Timeline


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


def fitted(schedule: Schedule, dims: Mapping[str, int] = PLANNED) -> FittedSchedule:
    """Return the schedule at a size, without recomputations that the budget does not need there.

    At the planned size, and where it exceeds the budget, the plan is that of the file.

    Args:
        schedule: The schedule.
        dims: Sizes by name.

    Raises:
        BindError: See `at_size`.
        ScheduleError: See `expand`.
    """
    return fitted_and_linked(schedule, dims)[0]


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
        return FittedSchedule(plain, 0, len(recomputes)), None
    budget = min(plain.budget_of("eager"), plain.budget_of("compiled"))
    links = links if links is not None and not expanded.splits else SizedLinks()
    left, linked = _left(expanded, budget, links)
    if len(left) == len(recomputes):
        return FittedSchedule(plain, 0, len(recomputes)), linked
    splits = (Split(split.operations, split.into) for split in expanded.splits)
    statements = (*splits, *_statements(graph, left), *_pages(graph, expanded.pages))
    fewer = replace(without_recomputes(plain), statements=statements)
    return FittedSchedule(fewer, len(recomputes) - len(left), len(recomputes)), linked


def _left(expanded: Expanded, budget: int, links: SizedLinks) -> tuple[Sequence[FlatRecompute], LinkedExpansion]:
    """Return the recomputations that the budget needs. Pages stay.

    None if the step without any is within the budget, all if they do not suffice. Otherwise as many groups are left out
    as seem to find room.
    """
    graph, left = expanded.graph, expanded.recomputes

    def simulated(recomputes: Sequence[FlatRecompute]) -> LinkedExpansion:
        linked = links.link(graph, recomputes, expanded.pages)
        return LinkedExpansion(expanded, linked, simulate(linked))

    simulation = simulated(())
    if simulation.timeline.peak <= budget:
        return (), simulation
    simulation = simulated(left)
    if simulation.timeline.peak > budget:
        return left, simulation
    chosen = affordable(groups(graph, left), simulation.linked, simulation.timeline, budget)
    for _ in range(_TRIES):
        if not chosen:
            break
        gone = frozenset[int]().union(*(group.ops for group in chosen))
        fewer = [recompute for recompute in left if recompute.op not in gone]
        tried = simulated(fewer)
        if tried.timeline.peak > budget:  # memory grew more than expected
            chosen = chosen[: len(chosen) // 2]
            continue
        left, simulation = fewer, tried
        chosen = affordable(groups(graph, left), simulation.linked, simulation.timeline, budget)
    return left, simulation


def _statements(graph: Graph, recomputes: Sequence[FlatRecompute]) -> tuple[Recompute, ...]:
    ids = [op.id for op in graph.operations]
    return tuple(
        Recompute(tuple(ids[recompute.op] for recompute in group), ids[before])
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
