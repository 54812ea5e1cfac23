"""The schedule of one size, with as much of its plan as its budget calls for there. Needs no torch.

Reruns that need one another are left out together, those first that save most time for the bytes that are kept instead; how
many of them is found by bisection, and what is left is within the budget by simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..format.schedule import KEEP_ALL, Instance, Rerun, Schedule
from ..format.substitution import PLANNED, at_size, checked_size
from ..step.expansion import expand
from ..step.graph import FlatRerun, Graph
from .linker import link
from .rerun_order import Group, groups, ranked
from .simulator import simulate

_TRIES = 16  # of what is left then, one group each


class Fitted(NamedTuple):
    """schedule: a plain one. dropped: the reruns that were left out, because what they save is not needed. planned: the reruns of
    the file."""

    schedule: Schedule
    dropped: int
    planned: int


def fitted(schedule: Schedule, dims: Mapping[str, int] = PLANNED) -> Fitted:
    """The schedule at a size, without reruns that the budget does not call for there. At the size that was planned at the plan is
    what the file says, as in a file of one size; so it is where it exceeds the budget.

    Raises BindError and ScheduleError as `at_size` and `expand` do.
    """
    plain = at_size(schedule, dims)
    expanded = expand(plain)
    graph, reruns = expanded.graph, expanded.reruns
    declared = schedule.model.dims
    if not reruns or all(n == declared[name].planned for name, n in checked_size(declared, dims).items()):
        return Fitted(plain, 0, len(reruns))
    budget = min(plain.budget_of("eager"), plain.budget_of("compiled"))
    left = _left(graph, reruns, budget)
    if len(left) == len(reruns):
        return Fitted(plain, 0, len(reruns))
    made = replace(without_reruns(plain), statements=_statements(graph, left))
    return Fitted(made, len(reruns) - len(left), len(reruns))


def _left(graph: Graph, reruns: Sequence[FlatRerun], budget: int) -> Sequence[FlatRerun]:
    """What is left of the reruns: none, if that is within the budget; all, if even these are not; else all but as many groups as
    can go in their order, and then single ones that can go, too."""
    gone: set[int] = set()

    def left(more: Iterable[Group]) -> list[FlatRerun]:
        ops = gone.union(*(group.ops for group in more))
        return [rerun for rerun in reruns if rerun.op not in ops]

    def fits(those: Sequence[FlatRerun]) -> bool:
        return simulate(link(graph, those)).peak <= budget

    if fits(()):
        return ()
    if not fits(reruns):
        return reruns
    order = groups(graph, reruns)
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


def _statements(graph: Graph, reruns: Sequence[FlatRerun]) -> tuple[Rerun, ...]:
    ids = [op.id for op in graph.operations]
    return tuple(
        Rerun(tuple(ids[one.op] for one in group), ids[before])
        for before, group in itertools.groupby(reruns, key=lambda one: one.before)
    )


def without_reruns(schedule: Schedule) -> Schedule:
    """The same step, everything kept."""
    blocks = {
        name: replace(block, plans={}, instances=_keeping(block.instances)) for name, block in schedule.blocks.items()
    }
    return replace(schedule, blocks=blocks, program=_keeping(schedule.program), statements=())


def _keeping(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    return tuple(replace(instance, plan=KEEP_ALL) for instance in instances)
