"""Faults of a step, one for each cause: a template is expanded many times, and a misspelt name is read in many
places."""

from __future__ import annotations

from ..errors import ScheduleError, ScheduleFaultsError
from ..format.limits import MAX_FAULTS

_MAX_SEEN = 3 * MAX_FAULTS  # looking for what was meant costs time, also where the cause is known


class Causes:
    """Collects faults. Of several with one cause the first is kept, with the number of places."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], ScheduleError] = {}
        self._places: dict[tuple[str, ...], set[str]] = {}
        self._seen = 0

    def add(self, fault: ScheduleError, where: str, *cause: str) -> None:
        """where: its pointer, unless it has one. cause: what it has in common with others of its code; default: the
        pointer, and for a name that means nothing (R030) the block and the name. Raises all faults once there are
        MAX_FAULTS."""
        located = ScheduleError(fault.code, fault.message, fault.where or where, fault.hint)
        if fault.code == "R030" and not cause:
            cause = (*located.where.split("/")[1:3], fault.message)
        key = (fault.code, *(cause or (located.where,)))
        self._found.setdefault(key, located)
        self._places.setdefault(key, set()).add(located.where)
        self._seen += 1
        if len(self._found) >= MAX_FAULTS or self._seen >= _MAX_SEEN:
            self.report()

    def report(self) -> None:
        """Raise ScheduleError, or ScheduleFaultsError with all of them, if there are any."""
        faults = [self._counted(key, fault) for key, fault in self._found.items()]
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise ScheduleFaultsError(faults)

    def _counted(self, key: tuple[str, ...], fault: ScheduleError) -> ScheduleError:
        more = len(self._places[key]) - 1
        if not more:
            return fault
        message = f"{fault.message} (so in {more} more place{'' if more == 1 else 's'})"
        return ScheduleError(fault.code, message, fault.where, fault.hint)
