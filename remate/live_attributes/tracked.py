"""Tracked floats: during a trace they record their computation and every comparison, with its line.

So it is known for which other values the trace holds. Operations that cannot be tracked are refused.
"""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Callable, Mapping
from inspect import currentframe
from types import FrameType
from typing import Any, NoReturn

import msgspec

from remate_runtime.format import Tree

from ..capture.places import user_place
from ..errors import CaptureError

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_BINARY = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "pow"}
_LOST = (
    *("int", "float", "complex", "floor", "ceil", "trunc", "round"),
    *("floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod"),
    # Keys of a dict or set, or parts of such a key: for other numbers, it has another item or none.
    *("hash", "str", "repr", "format"),
)
_EXACT = 1 << 53
_HERE = os.path.dirname(__file__) + os.sep


class NumberComparison(msgspec.Struct, frozen=True):
    """The comparison of `left` and `right` with result `held`.

    Attributes:
        place: `file.py:12`.
        comparison: A key of COMPARISONS.
    """

    place: str
    comparison: str
    left: Tree
    right: Tree
    held: bool


class Tracking:
    """The decisions of a trace on live numbers, and all numbers computed from them, by bits."""

    def __init__(self) -> None:
        self.decisions: dict[NumberComparison, None] = {}
        self.computed: dict[int, Tree] = {}

    def plant(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return tracked floats in place of values, by path."""
        return {path: self.track(value, path) for path, value in values.items()}

    def track(self, value: float, tree: Tree) -> Tracked:
        tracked = Tracked(value)
        tracked.tracking, tracked.tree = self, tree
        self.computed.setdefault(bits(value), tree)
        return tracked

    def note(self, comparison: str, left: Tree, right: Tree, result: bool) -> None:
        self.decisions.setdefault(NumberComparison(user_place(caller()).line, comparison, left, right, result))


def caller() -> FrameType | None:
    """Return the innermost frame outside of this package: one operation on a number may go through several of its
    functions."""
    frame = currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def bits(value: float) -> int:
    """Return the bits of a double: equal for equal numbers only, and different for -0.0 and 0.0."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


class Tracked(float):
    """A float that is tracked.

    Attributes:
        tracking: Records comparisons.
        tree: Its computation.
    """

    tracking: Tracking
    tree: Tree

    def __reduce__(self) -> Any:
        return float, (float.__pos__(self),)

    def __copy__(self) -> Tracked:
        return self

    def __deepcopy__(self, known: object) -> Tracked:
        return self

    def conjugate(self) -> Tracked:
        return self

    @property
    def real(self) -> Tracked:
        return self

    def __bool__(self) -> bool:
        nonzero = float.__ne__(self, 0.0)
        self.tracking.note("ne", self.tree, 0.0, nonzero)
        return nonzero

    def __neg__(self) -> Tracked:
        return self.tracking.track(float.__neg__(self), ("neg", self.tree))

    def __pos__(self) -> Tracked:
        return self

    def __abs__(self) -> Tracked:
        nonnegative = float.__ge__(self, 0.0)
        self.tracking.note("ge", self.tree, 0.0, nonnegative)
        return self if nonnegative else -self


def _operand(other: object) -> Tree | None:
    """Return an operand of arithmetic; None for a value that no double equals."""
    if isinstance(other, Tracked):
        return other.tree
    if type(other) is bool or not isinstance(other, int | float):
        return None
    return float(other) if isinstance(other, float) or abs(other) <= _EXACT else None


def _arithmetic(name: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(float, f"__{'r' if swapped else ''}{name}__")

    def compute(self: Tracked, other: object, *more: object) -> Any:
        tree = _operand(other)
        if tree is None or more:
            return NotImplemented
        result = plain(self, other)
        if type(result) is not float:
            return _lost(name)(self)
        return self.tracking.track(result, (_BINARY[name], *((tree, self.tree) if swapped else (self.tree, tree))))

    return compute


def _comparison(name: str) -> Callable[..., Any]:
    plain = getattr(float, f"__{name}__")

    def compare(self: Tracked, other: object) -> Any:
        result = plain(self, other)
        tree = _operand(other)
        if result is not NotImplemented and tree is not None:
            self.tracking.note(name, self.tree, tree, result)
        elif isinstance(other, int | float):
            return _lost("comparison")(self)
        return result

    return compare


def lost(name: str, place: str) -> NoReturn:
    """Refuse what takes the value of a live number in a way that cannot be repeated at every call.

    Args:
        name: What does it: `int()`.
        place: `file.py:12`.

    Raises:
        CaptureError: Always.
    """
    raise CaptureError(
        f"forward uses a live number by {name}, which cannot be read at every call",
        source=place,
        hint="compute with the number itself (+ - * / **), or do not declare it live",
    )


def _lost(name: str) -> Callable[..., Any]:
    def refuse(self: Tracked, *_: object) -> Any:
        lost(name, user_place(caller()).line)

    return refuse


for _name in _BINARY:
    setattr(Tracked, f"__{_name}__", _arithmetic(_name, False))
    setattr(Tracked, f"__r{_name}__", _arithmetic(_name, True))
for _name in COMPARISONS:
    setattr(Tracked, f"__{_name}__", _comparison(_name))
for _name in _LOST:
    setattr(Tracked, f"__{_name}__", _lost(f"{_name}()"))
for _name in ("is_integer", "as_integer_ratio", "hex"):
    setattr(Tracked, _name, _lost(f"{_name}()"))
