"""What a schedule must pass before any of it runs. Needs no torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import msgspec

from ..errors import REPLAN
from ..flat_step.expansion import expand
from ..format.fingerprints import check_fingerprint
from ..format.schedule import Schedule
from ..support.quantities import size
from .events import Linked
from .fitting import LinkedExpansion
from .linker import link
from .simulator import simulate


class Verified(msgspec.Struct, frozen=True):
    """A legal schedule: its events, and the peak in bytes that they give (never the one that the file states).

    where: JSON pointer of every operation. budget: in bytes, as the file states it. compiled: the same for a step that
    is compiled, where the file has one of its own. leaves: by id of an operation, the
    number of the instance without instances inside that it belongs to. name: of the schedule.
    """

    linked: Linked
    peak: int
    where: tuple[str, ...]
    budget: int
    compiled: int | None
    leaves: Mapping[str, int]
    name: str


def verify(schedule: Schedule, at: str = "", warned: bool = False, made: LinkedExpansion | None = None) -> Verified:
    """Expand, link and simulate. at: which of several sizes the schedule is for, as a warning says it. warned: about
    another size, once is enough. made: the schedule's step, if it has been expanded, linked and simulated. Raises
    ScheduleError for what is illegal, and for operations that somebody edited; warns if the peak is over the file's
    budget (plans may be edited).
    """
    check_fingerprint(schedule)
    if made is None:
        expanded = expand(schedule)
        linked = link(expanded.graph, expanded.recomputes, expanded.pages)
        made = LinkedExpansion(expanded, linked, simulate(linked))
    expanded, linked, peak = made.expanded, made.linked, made.timeline.peak
    budget = schedule.solve.budget
    if peak > budget and not warned:
        warnings.warn(
            f"schedule {schedule.name!r}{f' at {at}' if at else ''}: its peak of {size(peak)} is over its "
            f"budget of {size(budget)} (beyond parameters, buffers, inputs and optimizer state)"
            f"{', and so may others be' if at else ''}; add recomputations, or {REPLAN}",
            UserWarning,
            stacklevel=4,
        )
    operations = expanded.graph.operations
    leaves = {
        operations[index].id: number
        for number, place in enumerate(expanded.places)
        if place.leaf
        for index in (*place.forward, *place.backward)
    }
    requested = schedule.solve.compiled
    return Verified(
        linked, peak, expanded.where, budget, requested.budget if requested is not None else None, leaves, schedule.name
    )
