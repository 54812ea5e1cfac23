"""Forward's decisions by sizes as conditions on named dimensions, and the sizes for which each has the same outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Size

from ..capture.sizes import ARITHMETIC, COMPARISONS, SizeComparison
from .fitting import SizeFitter

_TELLING = 3  # captures that report a condition on its own
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_WORDS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


class SizeGuard(msgspec.Struct, frozen=True):
    """A comparison whose outcome `held` is known at some sizes. left, right: trees of Size and (operation,
    operands...)."""

    place: str
    comparison: str
    left: Any
    right: Any
    held: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the outcome is the same at these sizes."""
        try:
            outcome = COMPARISONS[self.comparison](_value(self.left, sizes), _value(self.right, sizes))
        except (ZeroDivisionError, ScheduleError):
            return False
        return outcome == self.held

    @property
    def dims(self) -> frozenset[str]:
        return _dims(self.left) | _dims(self.right)

    def __str__(self) -> str:
        sign = self.comparison if self.held else _OPPOSITE[self.comparison]
        return f"{_text(self.left)} {_SIGNS[sign]} {_text(self.right)}"


class SizeDecisions(msgspec.Struct, frozen=True):
    """The decisions of captures by sizes.

    Attributes:
        guards: Conditions with the same outcome in all captures.
        split: Conditions whose outcomes differ, or that some captures do not evaluate, although the step is the same;
            with the outcome of the first capture.
        lost: Places of decisions without a known condition: they are not evaluated equally often at every size, or
            compare numbers without an expression.
    """

    guards: list[SizeGuard]
    split: list[SizeGuard]
    lost: list[str]


def guards(logs: Sequence[Sequence[SizeComparison]], fitter: SizeFitter) -> SizeDecisions:
    """Return the decisions of captures at the fitter's sizes that depend on sizes, each once.

    If both outcomes occurred and gave the same step, nothing depends on the decision, except decisions after only one
    of them.
    """
    settled: dict[SizeGuard, None] = {}
    split: dict[SizeGuard, None] = {}
    lost: dict[str, None] = {}
    for taken in _aligned(logs, lost):
        both = len({decision.held for decision in taken}) > 1
        guard = _guard(taken, fitter)
        if guard is not None and guard.dims:
            (split if both else settled).setdefault(guard)
        elif guard is None and not both:
            lost.setdefault(taken[0].place)
    if lost:
        split |= dict.fromkeys(_of_some(logs, fitter))
    return SizeDecisions(list(settled), list(split), [place for place in lost if place])


def _guard(taken: Sequence[SizeComparison], fitter: SizeFitter) -> SizeGuard | None:
    """Return the condition of a decision at all sizes of a fitter, with its first outcome; None without expressions."""
    left, right = (_fitted([getattr(d, side) for d in taken], fitter) for side in ("left", "right"))
    if left is None or right is None:
        return None
    return SizeGuard(taken[0].place, taken[0].comparison, left, right, taken[0].held)


def _of_some(logs: Sequence[Sequence[SizeComparison]], fitter: SizeFitter) -> Iterator[SizeGuard]:
    """Yield conditions of decisions that the first capture took, and some others did not."""
    kinds = [_by_kind(log) for log in logs]
    for kind, first in kinds[0].items():
        present = tuple(len(each.get(kind, ())) == len(first) for each in kinds)
        if all(present) or sum(present) < _TELLING:
            continue
        some = [each[kind] for each, is_present in zip(kinds, present, strict=True) if is_present]
        for taken in zip(*some, strict=True):
            guard = _guard(taken, fitter.where(present))
            if guard is not None and guard.dims:
                yield guard


def first_other(
    left_log: Sequence[SizeComparison], right_log: Sequence[SizeComparison], fitter: SizeFitter
) -> SizeGuard | None:
    """Return the first decision whose outcomes differ in two captures, with the outcome of the first capture."""
    for first, second in _aligned([left_log, right_log], {}):
        if first.held != second.held:
            guard = _guard([first, second], fitter)
            if guard is not None:
                return guard
    return None


def _aligned(logs: Sequence[Sequence[SizeComparison]], lost: dict[str, None]) -> list[list[SizeComparison]]:
    """Return decisions of one place and kind: the first of all logs together, the second, and so on."""
    kinds = [_by_kind(log) for log in logs]
    aligned = []
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        taken = [each.get(kind, []) for each in kinds]
        if len({len(each) for each in taken}) == 1:
            aligned += [list(row) for row in zip(*taken, strict=True)]
        elif len({decision.held for each in taken for decision in each}) == 1:
            lost.setdefault(kind[0])
    return aligned


def _by_kind(log: Sequence[SizeComparison]) -> dict[Any, list[SizeComparison]]:
    decisions: dict[Any, list[SizeComparison]] = {}
    for decision in log:
        kind = decision.place, decision.comparison, _shape(decision.left), _shape(decision.right)
        decisions.setdefault(kind, []).append(decision)
    return decisions


def _shape(tree: Any) -> Any:
    return (tree[0], *map(_shape, tree[1:])) if isinstance(tree, tuple) else None


def _fitted(trees: Sequence[Any], fitter: SizeFitter) -> Any:
    """Return one tree with expressions in place of numbers; None if some numbers have none."""
    if not isinstance(trees[0], tuple):
        return next(iter(fitter.sizes(trees)), None)
    below = [_fitted([tree[at] for tree in trees], fitter) for at in range(1, len(trees[0]))]
    return None if any(part is None for part in below) else (trees[0][0], *below)


def _value(tree: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, Size):
        return tree.at(sizes)
    return ARITHMETIC[tree[0]](*(_value(part, sizes) for part in tree[1:]))


def _dims(tree: Any) -> frozenset[str]:
    return tree.dims if isinstance(tree, Size) else frozenset[str]().union(*map(_dims, tree[1:]))


def _text(tree: Any) -> str:
    if isinstance(tree, Size):
        return str(tree)
    parts = [f"({_text(part)})" if not _plain(part) else _text(part) for part in tree[1:]]
    word = _WORDS.get(tree[0])
    return f" {word} ".join(parts) if word else f"{tree[0]}({', '.join(parts)})"


def _plain(tree: Any) -> bool:
    return isinstance(tree, Size) and len(tree.terms) < 2
