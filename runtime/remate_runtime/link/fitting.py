"""The schedule of one size, with the plan that its budget calls for there. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from ..format.schedule import KEEP_ALL, Instance, Schedule
from ..format.substitution import PLANNED, at_size, checked_size
from ..step.expansion import expand
from .linker import link
from .simulator import simulate


class Fitted(NamedTuple):
    """schedule: a plain one. dropped: the reruns that were left out, because what they save is not needed."""

    schedule: Schedule
    dropped: int


def fitted(schedule: Schedule, dims: Mapping[str, int] = PLANNED) -> Fitted:
    """The schedule at a size, without reruns where a step that keeps everything is within the budget there. At the size that
    was planned at the plan is what the file says, as in a file of one size.

    Raises BindError and ScheduleError as `at_size` and `expand` do.
    """
    plain = at_size(schedule, dims)
    declared = schedule.model.dims
    if all(number == declared[name].planned for name, number in checked_size(declared, dims).items()):
        return Fitted(plain, 0)
    expanded = expand(plain)
    budget = min(plain.budget_of("eager"), plain.budget_of("compiled"))
    if not expanded.reruns or simulate(link(expanded.graph)).peak > budget:
        return Fitted(plain, 0)
    return Fitted(without_reruns(plain), len(expanded.reruns))


def without_reruns(schedule: Schedule) -> Schedule:
    """The same step, everything kept."""
    blocks = {
        name: replace(block, plans={}, instances=_keeping(block.instances)) for name, block in schedule.blocks.items()
    }
    return replace(schedule, blocks=blocks, program=_keeping(schedule.program), statements=())


def _keeping(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    return tuple(replace(instance, plan=KEEP_ALL) for instance in instances)
