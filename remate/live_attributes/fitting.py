"""Finds expressions of live numbers that are bitwise equal to known numbers at known values.

It tries the expressions that forward computed in Python, then those that operators build in C++ (`1 - p`, `1/(1 - p)`),
and these with a constant of the step (`alpha/4`), which it solves for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from remate_runtime.format import Tree, computed, names_of, written_number

from .tracked import bits

Values = Mapping[str, float]  # of live numbers, by path
_LARGEST = 1 << 31  # largest constant to solve for
_DIGITS = (6, 9, 12, 15)  # digits of non-integer constants


def at_values(tree: Tree, values: Values) -> float | None:
    """Return the number that an expression gives; None if it gives none."""
    try:
        return _function(tree)([values[name] for name in names_of(tree)])
    except (ArithmeticError, ValueError):
        return None


_function = lru_cache(maxsize=4096)(computed)


def equal(left: float | None, right: float) -> bool:
    """Return whether two numbers are bitwise equal."""
    return left is not None and bits(left) == bits(float(right))


class NumberFitter:
    """Fits expressions.

    Args:
        known: Expressions to start from.
        trace_samples: The values at which numbers are known; the last ones are far from special values.
    """

    def __init__(self, known: Sequence[Tree], trace_samples: Sequence[Values]) -> None:
        self._trace_samples = trace_samples
        self._known = [tree for tree in dict.fromkeys(known) if names_of(tree)]
        self._made = [more for tree in self._known for more in _usual(tree)]
        self._found: dict[tuple[int, ...], Tree | None] = {}

    def expression(self, row: Sequence[float]) -> Tree | None:
        """Return the simplest expression that gives these numbers, one for each trace sample; None if there is none."""
        key = tuple(bits(float(number)) for number in row)
        if key not in self._found:
            fitting = (tree for tree in self._candidates(row) if self._fits(tree, row))
            self._found[key] = next(fitting, None)
        return self._found[key]

    def _candidates(self, row: Sequence[float]) -> Iterator[Tree]:
        yield from self._known
        yield from self._made
        for tree in (*self._known, *self._made):
            at = at_values(tree, self._trace_samples[-1])
            if at:
                yield from _with_constant(tree, at, row[-1])

    def _fits(self, tree: Tree, row: Sequence[float]) -> bool:
        return len(written_number(tree)) <= 200 and all(
            equal(at_values(tree, trace_sample), number)
            for trace_sample, number in zip(self._trace_samples, row, strict=True)
        )


def _usual(tree: Tree) -> Iterator[Tree]:
    rest = ("-", 1.0, tree)
    yield from (rest, ("neg", tree), ("-", tree, 1.0), ("/", 1.0, rest), ("/", 1.0, tree))
    yield from (("sqrt", tree), ("exp", tree), ("log", tree), ("*", tree, tree), ("neg", rest))


def _with_constant(tree: Tree, at: float, wanted: float) -> Iterator[Tree]:
    """Yield expressions with a further constant that give `wanted` where `tree` gives `at`."""
    if not (math.isfinite(at) and math.isfinite(wanted)) or not wanted:
        return
    for number in _plain(at / wanted):
        yield "/", tree, number
    for number in _plain(wanted / at):
        yield "*", tree, number
    for number in _plain(wanted * at):
        yield "/", number, tree
    for number in _plain(wanted + at):
        yield "-", number, tree
    for number in _plain(wanted - at):
        yield "+", tree, number


def _plain(number: float) -> Iterator[float]:
    """Yield numbers of few digits that a computed number may stand for."""
    if not math.isfinite(number) or abs(number) > _LARGEST or not number:
        return
    if abs(number - round(number)) <= 1e-9 * abs(number):
        yield float(round(number))
        return
    yield from dict.fromkeys(float(f"{number:.{digits}g}") for digits in _DIGITS)
    yield number
