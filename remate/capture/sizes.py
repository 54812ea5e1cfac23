"""While tracing: records the decisions that Python code makes by sizes. A size is an int that records how it was
computed, and every comparison with its line. The record shows for which other sizes the trace is valid.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from remate_runtime.format import is_array, is_tuple

from .places import frame_above, user_place

Tree = int | tuple[Any, ...]  # a size, or (operation, operands...): ("mod", 211, 8)

_OF_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "neg", "abs")
ARITHMETIC: dict[str, Callable[..., Any]] = {name: vars(operator)[name] for name in _OF_ARITHMETIC}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_DIVISIONS = ("floordiv", "mod")
_QUOTIENTS = (*_DIVISIONS, "abs")
_ONE_OPERAND = ("neg", "abs")
_DEEPEST = 50  # operations that a number is followed through: a loop may compute each from the last one
_READS = (
    *("__int__", "__float__", "__hash__", "__str__", "__repr__", "__format__", "bit_length", "as_integer_ratio"),
    *("__round__", "__floor__", "__ceil__", "__trunc__", "__truediv__", "__rtruediv__", "__divmod__", "__rdivmod__"),
    *("__pow__", "__rpow__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__"),
    *("__lshift__", "__rlshift__", "__rshift__", "__rrshift__", "__index__", "bit_count", "to_bytes"),
)
_COUNTS = ("size", "numel", "nelement", "stride", "storage_offset")
_NBYTES = operator.attrgetter("nbytes.__get__")(torch.Tensor)  # of the property
_PARTS = ("unbind", "__iter__", "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit")


class SizeComparison(msgspec.Struct, frozen=True):
    """A comparison of `left` with `right`, whose result was `held`. place: `file.py:12`. comparison: a key of
    COMPARISONS."""

    place: str
    comparison: str
    left: Tree
    right: Tree
    held: bool


class SizeQuotient(msgspec.Struct, frozen=True):
    """A number that forward computed from sizes with a division or an absolute value. place: `file.py:12`. tree: how it
    was computed."""

    place: str
    tree: Tree
    number: int


class SizeLog:
    """The decisions of one trace, in order, and the numbers by which Python code divides sizes.

    Attributes:
        quotients: Numbers that follow from sizes by more than sums and products, each once. The trace does not show
            what forward does with other ones.
        reads: The sizes from which forward takes plain numbers, (how, size), in order. What it decides by these numbers
            is not recorded.
    """

    def __init__(self) -> None:
        self.decisions: list[SizeComparison] = []
        self.divisors: set[int] = set()
        self.reads: list[tuple[str, int]] = []
        self.quotients: dict[SizeQuotient, None] = {}

    def note(self, comparison: str, left: Tree, right: Tree, held: bool, frame: Any) -> None:
        place = user_place(frame).line
        self.decisions.append(SizeComparison(place, comparison, left, right, held))

    def tagged(self, function: object, result: object) -> Any:
        """Return the result of a function of tensors, with its sizes as recording ints."""
        name = getattr(function, "__name__", "")
        if isinstance(result, torch.Size):
            return torch.Size(map(self.size, result))
        if is_tuple(result) and name == "stride":
            return tuple(map(self.size, result))
        if type(result) is int and (name in _COUNTS or function == _NBYTES):
            return self.size(result)
        if isinstance(result, int) and name == "__len__":
            self.reads.append((name, result))  # `len` returns a plain number
        elif is_array(result) and name in _PARTS:
            self.reads.append((name, len(result)))  # so do loops
        return result

    def size(self, number: object) -> Any:
        return _tracked(self, _plain(number), _plain(number)) if isinstance(number, int) else number


class TracedSize(int):
    """An int that records comparisons in `log`.

    Attributes:
        tree: How it was computed.
        depth: Of the tree; 0 for a size.
        quotient: Not only by sums and products.
    """

    log: SizeLog
    tree: Tree
    depth: int
    quotient: bool

    def __reduce__(self) -> Any:
        return int, (_plain(self),)

    def __pos__(self) -> TracedSize:
        return self

    conjugate = __pos__

    def read(self, how: str) -> None:
        """Record that forward takes a plain number from the size. how: by which function."""
        self.log.reads.append((how, _plain(self)))

    def __bool__(self) -> bool:
        held = _plain(self) != 0
        self.log.note("ne", self.tree, 0, held, frame_above(1))
        return held


_plain = int.__pos__  # an int without a record


def _tracked(log: SizeLog, number: int, tree: Tree, depth: int = 0, quotient: bool = False) -> TracedSize:
    size = TracedSize(number)
    size.log, size.tree, size.depth, size.quotient = log, tree, depth, quotient
    return size


def _tree(operand: int) -> Tree:
    return operand.tree if isinstance(operand, TracedSize) else _plain(operand)


def _arithmetic(name: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(int, f"__{'r' if swapped else ''}{name}__")

    def compute(self: TracedSize, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is not int:
            self.read(name)  # by a float, which computes without a record
            return result
        if name in _DIVISIONS and not swapped:
            self.log.divisors.add(abs(_plain(others[0])))
        operands = (*others, self) if swapped else (self, *others)
        tracked = [each for each in operands if isinstance(each, TracedSize)]
        depth = 1 + max(each.depth for each in tracked)
        if depth > _DEEPEST:
            self.read(name)
            return result
        tree = (name, *map(_tree, operands))
        quotient = name in _QUOTIENTS or any(each.quotient for each in tracked)
        if quotient:
            place = user_place(frame_above(1)).line
            self.log.quotients[SizeQuotient(place, tree, result)] = None
        return _tracked(self.log, result, tree, depth, quotient)

    return compute


def _comparison(name: str) -> Callable[..., Any]:
    plain = getattr(int, f"__{name}__")

    def compare(self: TracedSize, other: Any) -> Any:
        held = plain(self, other)
        if held is not NotImplemented:
            self.log.note(name, self.tree, _tree(other), held, frame_above(1))
        elif isinstance(other, float):
            self.read(name)
        return held

    return compare


def _read(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def read(self: TracedSize, *others: Any) -> Any:
        self.read(name)
        return plain(self, *others)

    return read


for _name in ("real", "numerator"):
    setattr(TracedSize, _name, property(TracedSize.__pos__))
for _name in ARITHMETIC:
    setattr(TracedSize, f"__{_name}__", _arithmetic(_name, False))
    if _name not in _ONE_OPERAND:
        setattr(TracedSize, f"__r{_name}__", _arithmetic(_name, True))
for _name in COMPARISONS:
    setattr(TracedSize, f"__{_name}__", _comparison(_name))
for _name in _READS:
    setattr(TracedSize, _name, _read(_name))
