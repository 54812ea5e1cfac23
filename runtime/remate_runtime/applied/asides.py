"""Warns of calls that run the model's own forward: once for each kind of reason, not for each size or part."""

from __future__ import annotations

import re
import warnings

from ..errors import SteppedAsideWarning
from ..support.callers import frames_to_caller

_KINDS = 4  # most kinds of reasons that lead to a warning
_NUMBERS = re.compile(r"\d[\d,.]*")


class Asides:
    """The reasons so far. The parts of a model share them.

    Args:
        parts: Whether several parts of a model share them.
    """

    def __init__(self, parts: bool = False) -> None:
        self._parts = parts
        self._kinds: set[tuple[str, bool]] = set()

    def is_new(self, why: str, over: bool = False) -> bool:
        """Return whether a reason is worth a warning.

        Args:
            why: The reason. Others that differ in numbers only are of the same kind.
            over: Whether the call exceeds the budget, which is worth another warning.
        """
        kind = _kind(why)
        known = {(kind, True), (kind, over)} & self._kinds
        return not known and (len(self._kinds) < _KINDS or (kind, False) in self._kinds)

    def warn(self, why: str, over: bool = False, estimate: str = "") -> None:
        """Warn if the reason is new.

        Args:
            why: As for `is_new`.
            over: As for `is_new`.
            estimate: The memory of the call.
        """
        if not self.is_new(why, over):
            return
        kind = _kind(why)
        self._kinds.add((kind, over))
        text = f"the schedule steps aside: {why}{estimate}"
        if kind != why:
            text += f"\n  other calls{' and parts' * self._parts} of this kind are not reported"
        if len({kind for kind, _ in self._kinds}) == _KINDS:
            text += "\n  further reasons are not reported"
        warnings.warn(text, SteppedAsideWarning, stacklevel=frames_to_caller())


def _kind(why: str) -> str:
    return _NUMBERS.sub("#", why)
