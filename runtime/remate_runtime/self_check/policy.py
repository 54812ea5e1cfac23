"""The calls at which the self-check runs."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..bind.containers import is_mapping
from ..errors import BindError
from ..format.json_values import is_array

Call = tuple[Sequence[Any], Mapping[str, Any]]
Verify = Literal["first", "never"] | bool | int | Call


class Checks(NamedTuple):
    """When to check an applied model.

    Attributes:
        first: At the first call of each program.
        every: At each call whose number is a multiple of this; 0 for none.
    """

    first: bool = True
    every: int = 0


CHECK_FIRST = Checks()
_SIZES = 16  # of a file for a range, new sizes that are all checked


def checks_of(verify: object) -> tuple[Checks, Call | bool]:
    """Parse `apply(..., verify=...)`.

    Args:
        verify: The argument.

    Returns:
        The calls to check, and the call to check at once: (args, kwargs), True for random inputs, False for none.

    Raises:
        BindError: The argument has none of the allowed values.
    """
    if verify is True:
        return CHECK_FIRST, True
    if verify is False or verify == "never":
        return Checks(first=False), False
    if verify == "first":
        return CHECK_FIRST, False
    if isinstance(verify, int) and verify > 0:
        return Checks(every=verify), False
    if is_array(verify) and len(verify) == 2 and is_mapping(verify[1]):
        return CHECK_FIRST, (verify[0], verify[1])
    raise BindError(
        f"verify={verify!r} is no time to check a model at\n  verify='first' (at the first call of each program), "
        "verify=1000 (at every 1000th call, too), verify='never', verify=(args, kwargs) (at once, on that call) or "
        "verify=True (at once, on random inputs)"
    )


class Turn(NamedTuple):
    """A call to check.

    Attributes:
        family: The program.
        size: The size of the call.
        together: Whether other ranks run the same call.
    """

    family: Hashable
    size: Hashable
    together: bool


class Turns:
    """Counts the calls of an applied model, and selects those to check.

    A program is a file at a size, with or without gradients. Of a file for a range of sizes, the first 16 new sizes are
    checked, then the 32nd, 64th, …, so that varying lengths cost little. If forward may decide by sizes in ways that
    the planner could not follow, each new size is checked.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._seen: set[Hashable] = set()
        self._sizes: dict[Hashable, int] = {}
        self._calls: dict[Hashable, int] = {}

    def due(self, family: Hashable, size: Hashable, each: bool) -> bool:
        """Return whether to check the call that is about to run.

        Args:
            family: The file, and whether gradients are enabled.
            size: The size of the call.
            each: Check each new size.
        """
        checks = self._checks
        if not checks.first or (not checks.every and (family, size) in self._seen):
            return False
        with self._lock:
            calls = self._calls.get(family, 0)
            self._calls[family] = calls + 1
            if checks.every and calls % checks.every == 0:
                self._seen.add((family, size))
                return True
            if (family, size) in self._seen:
                return False
            self._seen.add((family, size))
            sizes = self._sizes[family] = self._sizes.get(family, 0) + 1
            return each or sizes <= _SIZES or sizes & (sizes - 1) == 0  # a power of two

    def start_again(self) -> None:
        """Check the next call of every program, as at the beginning."""
        with self._lock:
            self._seen, self._sizes = set(), {}

    def again(self, family: Hashable, size: Hashable) -> None:
        """Postpone the check to the next call of the program, because this call could not be checked."""
        with self._lock:
            if (family, size) in self._seen:
                self._seen.discard((family, size))
                self._sizes[family] = max(0, self._sizes.get(family, 0) - 1)
