"""The checks of a schedule before it runs. Does not require torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import msgspec

from ..errors import REPLAN
from ..flat_step.expansion import expand
from ..format.fingerprints import check_fingerprint
from ..format.schedule import Schedule
from ..support.callers import frames_to_caller
from ..support.quantities import size
from .events import Linked
from .linker import link
from .simulator import simulate
from .sizes import LinkedExpansion


class Verified(msgspec.Struct, frozen=True):
    """A legal schedule.

    Attributes:
        linked: Its step.
        peak: Bytes by simulation, never the figure of the file.
        where: JSON pointer of each operation.
        budget: Bytes, from the file.
        compiled: The file's separate budget for a compiled step, if any.
        leaves: By id of an operation, the number of its instance, which has no inner instances.
        name: Name of the schedule.
    """

    linked: Linked
    peak: int
    where: tuple[str, ...]
    budget: int
    compiled: int | None
    leaves: Mapping[str, int]
    name: str


def verify(
    schedule: Schedule, at: str = "", warned: bool = False, linked_before: LinkedExpansion | None = None
) -> Verified:
    """Expand, link and simulate a schedule. Warn if its peak is over the file's budget, as plans may be edited.

    Args:
        schedule: The schedule.
        at: Its size in words, for the warning, if there are several.
        warned: A warning about another size has been issued, so this one is left out.
        linked_before: The schedule's step, if it has been linked before.

    Raises:
        ScheduleError: The schedule is illegal, or its operations have been edited.
    """
    check_fingerprint(schedule)
    if linked_before is None:
        expanded = expand(schedule)
        linked = link(expanded.graph, expanded.recomputes, expanded.pages)
        linked_before = LinkedExpansion(expanded, linked, simulate(linked).peak)
    expanded, linked, peak = linked_before.expanded, linked_before.linked, linked_before.peak
    budget = schedule.solve.budget
    if peak > budget and not warned:
        settings = schedule.solve.settings
        if at and settings is not None and "%" in settings.budget:
            advice = f": {settings.budget} is a share of the step at the planned size, and larger calls take more"
        else:
            advice = f"{', and so may others be' if at else ''}; add recomputations, or {REPLAN}"
        warnings.warn(
            f"schedule {schedule.name!r}{f' at {at}' if at else ''}: its peak of {size(peak)} is over its "
            f"budget of {size(budget)} (beyond parameters, buffers, inputs and optimizer state){advice}",
            UserWarning,
            stacklevel=frames_to_caller(),
        )
    requested = schedule.solve.compiled
    compiled = requested.budget if requested is not None else None
    return Verified(linked, peak, expanded.where, budget, compiled, expanded.leaves, schedule.name)
