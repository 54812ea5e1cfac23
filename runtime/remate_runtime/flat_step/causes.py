"""Faults of a step, one per cause. Templates expand many times, and many places may read a misspelt name."""

from __future__ import annotations

from ..errors import ScheduleError, ScheduleFaultsError
from ..format.limits import MAX_FAULTS

_MAX_SEEN = 3 * MAX_FAULTS  # searching for similar names takes time, even for a known cause


class Causes:
    """Collects faults. Of several with the same cause it keeps the first, with the number of places."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], ScheduleError] = {}
        self._places: dict[tuple[str, ...], set[str]] = {}
        self._seen = 0

    def add(self, fault: ScheduleError, where: str, *cause: str) -> None:
        """Add a fault, and raise all faults once there are MAX_FAULTS.

        Args:
            fault: The fault.
            where: Its pointer, unless it has one.
            cause: What it shares with others of its code. By default the pointer; for an unknown name (R030) the block
                and the name.
        """
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
        """Raise ScheduleError, or ScheduleFaultsError with all faults, if there are any."""
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
