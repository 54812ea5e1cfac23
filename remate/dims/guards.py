"""Forward's decisions by sizes as conditions on named dimensions, and the sizes for which each has the same outcome."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from remate_runtime.errors import ScheduleError

from ..capture.sizes import COMPARISONS, SizeComparison
from .fitting import SizeFitter
from .size_trees import aligned, by_kind, dims_of, evaluated, fitted, shape, tree_text

_TELLING = 3  # captures that report a condition on its own
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


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
            outcome = COMPARISONS[self.comparison](evaluated(self.left, sizes), evaluated(self.right, sizes))
        except (ZeroDivisionError, ScheduleError):
            return False
        return outcome == self.held

    @property
    def dims(self) -> frozenset[str]:
        return dims_of(self.left) | dims_of(self.right)

    def __str__(self) -> str:
        sign = self.comparison if self.held else _OPPOSITE[self.comparison]
        return f"{tree_text(self.left)} {_SIGNS[sign]} {tree_text(self.right)}"


class SizeDecisions(msgspec.Struct, frozen=True):
    """The decisions of captures by sizes.

    Attributes:
        guards: Conditions with the same outcome in all captures.
        split: Conditions whose outcomes differ, or that some captures do not evaluate, although the step is the same;
            with the outcome of the first capture.
        lost: Places of decisions without a known condition: they are not evaluated equally often at every size, or
            compare numbers without an expression.
        uneven: Whether there are decisions with both outcomes that are not evaluated equally often at every size, as in
            a binary search. What they decide elsewhere is unknown.
    """

    guards: list[SizeGuard]
    split: list[SizeGuard]
    lost: list[str]
    uneven: bool


def guards(logs: Sequence[Sequence[SizeComparison]], fitter: SizeFitter) -> SizeDecisions:
    """Return the decisions of captures at the fitter's sizes that depend on sizes, each once.

    If both outcomes occurred and gave the same step, nothing depends on the decision, except decisions after only one
    of them.
    """
    settled: dict[SizeGuard, None] = {}
    split: dict[SizeGuard, None] = {}
    rows, others = aligned(logs, _kind)
    mixed = [len({decision.held for decision in taken}) > 1 for taken in others]
    lost = dict.fromkeys(taken[0].place for taken, both in zip(others, mixed, strict=True) if not both)
    for taken in rows:
        both = len({decision.held for decision in taken}) > 1
        guard = _guard(taken, fitter)
        if guard is not None and guard.dims:
            (split if both else settled).setdefault(guard)
        elif guard is None and not both:
            lost.setdefault(taken[0].place)
    if lost:
        split |= dict.fromkeys(_of_some(logs, fitter))
    return SizeDecisions(list(settled), list(split), [place for place in lost if place], any(mixed))


def _guard(taken: Sequence[SizeComparison], fitter: SizeFitter) -> SizeGuard | None:
    """Return the condition of a decision at all sizes of a fitter, with its first outcome; None without expressions."""
    left, right = (fitted([getattr(d, side) for d in taken], fitter) for side in ("left", "right"))
    if left is None or right is None:
        return None
    return SizeGuard(taken[0].place, taken[0].comparison, left, right, taken[0].held)


def _of_some(logs: Sequence[Sequence[SizeComparison]], fitter: SizeFitter) -> Iterator[SizeGuard]:
    """Yield conditions of decisions that the first capture took, and some others did not."""
    kinds = [by_kind(log, _kind) for log in logs]
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
    for first, second in aligned([left_log, right_log], _kind)[0]:
        if first.held != second.held:
            guard = _guard([first, second], fitter)
            if guard is not None:
                return guard
    return None


def _kind(decision: SizeComparison) -> Hashable:
    return decision.place, decision.comparison, shape(decision.left), shape(decision.right)
