"""The schedule of one size, with as much of its plan as its budget calls for there. Needs no torch.

Recomputations that need one another are left out together, those first that save most time for the bytes that are kept
instead; how many of them is found by bisection, and what is left is within the budget by simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..flat_step.expansion import Expanded, expand
from ..flat_step.graph import FlatPage, FlatRecompute, Graph
from ..format.schedule import BASELINE, Instance, Page, Recompute, Schedule, Split
from ..format.substitution import PLANNED, at_size, checked_size
from .linker import link
from .recompute_order import RecomputeGroup, groups, ranked
from .simulator import simulate

_TRIES = 16  # of what is left then, one group each


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
    plain = at_size(schedule, dims)
    expanded = expand(plain)
    graph, recomputes = expanded.graph, expanded.recomputes
    declared = schedule.model.dims
    if not recomputes or all(n == declared[name].planned for name, n in checked_size(declared, dims).items()):
        return FittedSchedule(plain, 0, len(recomputes))
    budget = min(plain.budget_of("eager"), plain.budget_of("compiled"))
    left = _left(expanded, budget)
    if len(left) == len(recomputes):
        return FittedSchedule(plain, 0, len(recomputes))
    splits = (Split(one.operations, one.into) for one in expanded.splits)
    statements = (*splits, *_statements(graph, left), *_pages(graph, expanded.pages))
    made = replace(without_recomputes(plain), statements=statements)
    return FittedSchedule(made, len(recomputes) - len(left), len(recomputes))


def _left(expanded: Expanded, budget: int) -> Sequence[FlatRecompute]:
    """What is left of the recomputes: none, if that is within the budget; all, if even these are not; else all but as
    many groups as can go in their order, and then single ones that can go, too. Pages stay."""
    graph, recomputes = expanded.graph, expanded.recomputes
    gone: set[int] = set()

    def left(more: Iterable[RecomputeGroup]) -> list[FlatRecompute]:
        ops = gone.union(*(group.ops for group in more))
        return [recompute for recompute in recomputes if recompute.op not in ops]

    def fits(those: Sequence[FlatRecompute]) -> bool:
        return simulate(link(graph, those, expanded.pages)).peak <= budget

    if fits(()):
        return ()
    if not fits(recomputes):
        return recomputes
    order = groups(graph, recomputes)
    kept, over = 0, len(order)
    while over - kept > 1:
        middle = (kept + over) // 2
        kept, over = (middle, over) if fits(left(order[:middle])) else (kept, middle)
    gone.update(*(group.ops for group in order[:kept]))
    failed = {order[kept].ops}
    for _ in range(_TRIES):
        group = next((one for one in ranked(graph, left(())) if one.ops not in failed), None)
        if group is None:
            break
        if fits(left([group])):
            gone |= group.ops
        else:
            failed.add(group.ops)
    return left(())


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
