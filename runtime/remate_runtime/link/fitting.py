"""The schedule of one size, with as much of its plan as its budget calls for there. Needs no torch.

Reruns that need one another are left out together, those first that save most time for the bytes that are kept instead; how
many of them is found by bisection, and what is left is within the budget by simulation.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..format.schedule import KEEP_ALL, Instance, Rerun, Schedule
from ..format.substitution import PLANNED, at_size, checked_size
from ..step.expansion import expand
from ..step.graph import FlatRerun, Graph
from .linker import link
from .simulator import simulate

_TRIES = 8  # groups that are tried by themselves


class _Group(NamedTuple):
    """ops: that rerun. figures: ns that they take again, bytes of what they make that backward reads."""

    ops: frozenset[int]
    figures: tuple[int, int]


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
    """What is left of the reruns: none, if that is within the budget; all, if even these are not; else all but as many groups as can go in
    their order, and of those behind them the ones that can go, too, a few of which are tried."""
    groups = _groups(graph, reruns)
    gone: set[int] = set()

    def fits(more: Iterable[_Group]) -> bool:
        ops = gone.union(*(group.ops for group in more))
        return simulate(link(graph, [rerun for rerun in reruns if rerun.op not in ops])).peak <= budget

    if fits(groups):
        return ()
    if not fits(()):
        return reruns
    kept, over = 0, len(groups)
    while over - kept > 1:
        middle = (kept + over) // 2
        kept, over = (middle, over) if fits(groups[:middle]) else (kept, middle)
    gone.update(*(group.ops for group in groups[:kept]))
    failed, tries = {groups[kept].figures}, iter(range(_TRIES))
    for group in groups[kept + 1 :]:
        if group.figures not in failed and next(tries, None) is not None:
            if fits([group]):
                gone |= group.ops
            else:
                failed.add(group.figures)
    return [rerun for rerun in reruns if rerun.op not in gone]


def _groups(graph: Graph, reruns: Sequence[FlatRerun]) -> list[_Group]:
    """Reruns that read what others of them make are one group; those that save most time for the bytes that backward reads of
    what they make come first."""
    leader = {rerun.op: rerun.op for rerun in reruns}

    def of(op: int) -> int:
        while leader[op] != op:
            op = leader[op]
        return op

    maker = {graph.root[v]: op for op in leader for v in graph.operations[op].writes if v is not None}
    for op in leader:
        for value in graph.operations[op].reads:
            made_by = maker.get(graph.root[value])
            if made_by is not None:
                leader[of(op)] = of(made_by)
    groups: dict[int, set[int]] = {}
    for op in leader:
        groups.setdefault(of(op), set()).add(op)
    read = {graph.root[v] for op in graph.operations[graph.backward_start :] for v in op.reads}
    times = Counter(rerun.op for rerun in reruns)

    def group(ops: set[int]) -> _Group:
        written = {graph.root[v] for op in ops for v in graph.operations[op].writes if v is not None}
        spent = sum(times[op] * graph.operations[op].ns for op in ops)
        return _Group(frozenset(ops), (spent, sum(map(graph.nbytes, written & read))))

    return sorted(map(group, groups.values()), key=lambda one: (-one.figures[0] / (1 + one.figures[1]), min(one.ops)))


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
