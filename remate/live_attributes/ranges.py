"""The ranges of live numbers within which forward's decisions stay as traced."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from remate_runtime.format import Live, Tree, names_of

from ..errors import CaptureError
from .fitting import Values, at_values
from .tracked import COMPARISONS, NumberComparison, bits

_LARGEST = sys.float_info.max
_FAR = 1e300
Holds = Callable[[float], bool]


class Interval(msgspec.Struct, frozen=True):
    """The doubles from low to high, inclusive."""

    low: float = -_LARGEST
    high: float = _LARGEST

    def within(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def live(self, planned: float) -> Live:
        """Return the interval as in the file: open ends are omitted, and each end is the shorter of two equivalent
        numbers."""
        ends: dict[str, Any] = {}
        for inside, outside, outer in ((self.low, "above", -math.inf), (self.high, "below", math.inf)):
            closed = "min" if outside == "above" else "max"
            beyond = math.nextafter(inside, outer)
            if math.isfinite(beyond):
                ends |= {outside: _short(beyond)} if len(repr(beyond)) < len(repr(inside)) else {closed: _short(inside)}
        return Live(planned=planned, **ends)


def _short(number: float) -> int | float:
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def interval(decisions: Iterable[NumberComparison], path: str, planned: Values) -> Interval:
    """Return where all decisions have the same result, around the planned value.

    Raises:
        CaptureError: A decision does not follow from the attribute alone, or the planned value is isolated.
    """
    allowed = Interval()
    for decision in decisions:
        names = {*names_of(decision.left), *names_of(decision.right)}
        if path not in names:
            continue
        what = f"forward decides by the live number {path!r}"
        if len(names) > 1:
            others = ", ".join(sorted(names - {path}))
            raise CaptureError(
                f"{what} and {others} together",
                source=decision.place,
                hint="do not declare them live, or decide outside",
            )
        both = names_of(decision.left) and names_of(decision.right)
        if both or not (_rises(decision.left) and _rises(decision.right)):
            raise CaptureError(
                f"{what} in a way that gives no range", source=decision.place, hint="compare the attribute itself"
            )
        allowed = allowed.within(_around(decision, path, planned[path]))
    return allowed


def _around(decision: NumberComparison, path: str, planned: float) -> Interval:
    def sides(value: float) -> tuple[float, float] | None:
        left, right = (at_values(side, {path: value}) for side in (decision.left, decision.right))
        return None if left is None or right is None else (left, right)

    def holds(value: float) -> bool:
        compared = sides(value)
        if compared is None:
            return False
        if decision.comparison in ("eq", "ne"):  # not equal: the side that contains the planned value
            return was is not None and (compared[0] > compared[1]) == (was[0] > was[1]) and compared[0] != compared[1]
        return COMPARISONS[decision.comparison](*compared) == decision.held

    was = sides(planned)
    if was is None or COMPARISONS[decision.comparison](*was) != decision.held or not holds(planned):
        raise CaptureError(
            f"live number {path!r} is {planned!r}, where forward does something else than beside it",
            source=decision.place,
            hint="plan with a number of those that it will take, and leave those out that are always special",
        )
    low, high = (edge(holds, planned, far) for far in (-_FAR, _FAR))  # beyond, arithmetic overflows
    return Interval(-_LARGEST if low == -_FAR else low, _LARGEST if high == _FAR else high)


def edge(holds: Holds, inside: float, outside: float) -> float:
    """Return the last number from `inside` towards `outside` for which `holds` is true; it becomes false once."""
    if holds(outside):
        return outside
    low, high = _rank(inside), _rank(outside)
    while abs(high - low) > 1:
        middle = (low + high) // 2
        if holds(_of_rank(middle)):
            low = middle
        else:
            high = middle
    return _of_rank(low)


def _rank(number: float) -> int:
    """Return the rank of a double in order; -0.0 and 0.0 have the same rank."""
    pattern = bits(number)
    return pattern if pattern >= 0 else -(pattern & ((1 << 63) - 1))


def _of_rank(rank: int) -> float:
    number = struct.unpack("<d", struct.pack("<q", abs(rank)))[0]
    return number if rank >= 0 else -number


def _rises(tree: Tree) -> bool:
    """Return whether an expression is monotonic in its attribute."""
    if not isinstance(tree, tuple):
        return True
    name, *below = tree
    fixed = [not names_of(each) for each in below]
    if name in ("neg", "sqrt", "exp", "log"):
        return _rises(below[0])
    if name in ("+", "-", "*"):
        return any(fixed) and all(map(_rises, below))
    return name == "/" and fixed[1] and _rises(below[0])
