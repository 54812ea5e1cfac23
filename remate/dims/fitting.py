"""Expressions of sizes that give known numbers at known sizes: all of a small grammar that do, not only the first one.

Candidates of a row, from simple to involved: sums of up to two products of dimensions and a number; products in which one or two
dimensions are divided, rounding down; sums of three products; products with a division, with another product or number added. Their coefficients are solved for
exactly from as many sizes as there are unknowns, and hold at all others. Which divisors there are is given: a step divides by
numbers that stand in it (strides of convolutions and pools) or that forward was seen to divide by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Real, Side, Size, constant, dimension, divided

_DEGREE, _TOTAL = 2, 3  # of one dimension, of a product
_SCALES = (1, 2, 3)  # of a dimension that is divided
_NUMERATORS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 4.0, 16.0)
_DENOMINATORS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_LARGEST = 1 << 60
_PAIRED = 64  # the largest divisor of two dimensions that are multiplied


class _Part:
    """A product of expressions, and its values at the known sizes."""

    def __init__(self, factors: tuple[Size, ...], values: list[int]) -> None:
        self.factors, self.values = factors, values

    def times(self, other: _Part) -> _Part:
        return _Part((*self.factors, *other.factors), [a * b for a, b in zip(self.values, other.values, strict=True)])


class Fitter:
    """ranges: for each dimension all sizes that matter. sizes: where the numbers of rows are known, in the order of the rows.
    divisors: to try."""

    def __init__(
        self, ranges: Mapping[str, Sequence[int]], sizes: Sequence[Mapping[str, int]], divisors: Sequence[int]
    ) -> None:
        self._ranges, self._sizes, self._divisors = ranges, sizes, divisors
        self._partial: dict[tuple[bool, ...], Fitter] = {}
        self._known: dict[tuple[int, ...], list[Size]] = {}
        self._one = self._part(constant(1))
        self._products = [self._part(size) for size in _products(list(ranges))]
        self._quotient_parts: tuple[list[_Part], Any] | None = None

    def expressions(self, row: Sequence[int | float | None]) -> Sequence[Size | Real]:
        """Those of a row of integers, or of floats. None: whatever an expression gives there."""
        if None in row:
            return self.where(tuple(number is not None for number in row)).expressions(
                [n for n in row if n is not None]
            )
        if all(type(number) is int for number in row):
            return self.sizes([int(number or 0) for number in row])
        return self.reals([float(number or 0) for number in row])

    def where(self, told: tuple[bool, ...]) -> Fitter:
        """The fitter of those sizes at which something is told."""
        if told not in self._partial:
            sizes = [at for at, there in zip(self._sizes, told, strict=True) if there]
            self._partial[told] = Fitter(self._ranges, sizes, self._divisors)
        return self._partial[told]

    def sizes(self, row: Sequence[int]) -> list[Size]:
        """All integer expressions of the grammar that give `row`, the simplest first."""
        key = tuple(row)
        if key not in self._known:
            self._known[key] = [constant(key[0])] if len(set(key)) == 1 else self._searched(key)
        return self._known[key]

    def _searched(self, row: tuple[int, ...]) -> list[Size]:
        found = [*self._sums(row), *self._quotients(row)] or [*self._sums_of_three(row)]
        for more in [self._one, *self._products] if len(row) > 2 else ():
            if found:
                break
            found = list(self._quotients(row, more))
        return list(dict.fromkeys(found))

    def _quotients(self, row: tuple[int, ...], more: _Part | None = None) -> Iterator[Size]:
        """Multiples of products with a division, with a multiple of one more product. In floats first, where thousands are tried
        at once: what is not close cannot be equal."""
        parts, values = self._divided()
        wanted = np.array(row, dtype=float)
        if not len(values):
            return
        with np.errstate(all="ignore"):
            if more is None:
                close = values * (wanted[0] / values[:, :1])
            else:
                line = np.array(more.values, dtype=float)
                determinants = values[:, :1] * line[1] - values[:, 1:2] * line[0]
                first = (wanted[0] * line[1] - wanted[1] * line[0]) / determinants
                second = (values[:, :1] * wanted[1] - values[:, 1:2] * wanted[0]) / determinants
                close = first * values + second * line
            near = np.all(np.abs(close - wanted) <= 1e-6 * np.abs(wanted) + 1e-3, axis=1)
        for at in np.flatnonzero(near):
            part = parts[at]
            yield from _combined([part] if more is None else [part, more], row)

    def _divided(self) -> tuple[list[_Part], Any]:
        """Products with a division, squares of them, and their values by row; made when they are first needed."""
        if self._quotient_parts is None:
            parts = self._products_with_divisions()
            values = np.array([part.values for part in parts], dtype=float).reshape(-1, len(self._sizes))
            self._quotient_parts = parts, values
        return self._quotient_parts

    def _products_with_divisions(self) -> list[_Part]:
        quotients = {
            name: [
                self._part(atom)
                for atom in _quotients(name, {*numbers, *(at[name] for at in self._sizes)}, self._divisors)
            ]
            for name, numbers in self._ranges.items()
        }
        plain = [self._one, *self._products]
        every = [quotient for each in quotients.values() for quotient in each]
        made = [quotient.times(more) for quotient in every for more in plain]
        made += [square.times(more) for square in (each.times(each) for each in every) for more in plain]
        for one, other in itertools.combinations(quotients.values(), 2):
            pairs = [a.times(b) for a, b in _pairs(one, other)]
            made += [pair.times(more) for pair in pairs for more in plain]
        return made

    def reals(self, row: Sequence[float]) -> list[Real]:
        """All floats of the grammar that give `row` to the last bit: size, sqrt(size), size/n, n/size, n/sqrt(size)."""
        return list(dict.fromkeys(made for made in self._reals(row) if self._gives(made, row)))

    def bound(self, row: Sequence[int | None]) -> Size:
        """A product of dimensions times a number that is nowhere less than `row` where that is told; the closest one at the first
        size."""
        least: dict[Size, int] = {}
        for part in [self._one, *self._products]:
            told = ((wanted, value) for wanted, value in zip(row, part.values, strict=True) if wanted is not None)
            factor = max(-(-wanted // value) for wanted, value in told)
            least[part.factors[0] * constant(factor)] = factor * part.values[0]
        return min(least, key=lambda size: least[size])

    def _part(self, size: Size) -> _Part:
        return _Part((size,), [size.at(at) for at in self._sizes])

    def _sums(self, row: Sequence[int]) -> Iterator[Size]:
        for count in (1, 2, 3):
            if count < len(row):
                for chosen in itertools.combinations(self._products, count):
                    if count < 3:
                        yield from _combined(chosen, row)
                for chosen in itertools.combinations(self._products, count - 1) if count > 1 else ():
                    yield from _combined([*chosen, self._one], row)

    def _sums_of_three(self, row: Sequence[int]) -> Iterator[Size]:
        """`b*t+b*s+b`: what several inputs that were joined have together."""
        for chosen in itertools.combinations(self._products, 3) if len(row) > 3 else ():
            yield from _combined(chosen, row)

    def _reals(self, row: Sequence[float]) -> Iterator[Real]:
        for size in self._rounded(row):
            yield Real(Side(size=size))
        for size in self._rounded([value * value for value in row]):
            yield Real(Side(size=size, root=True))
        for number in _DENOMINATORS:
            for size in self._rounded([value * number for value in row]):
                yield Real(Side(size=size), Side(number=number))
        for number in () if 0.0 in row else _NUMERATORS:
            for size in self._rounded([number / value for value in row]):
                yield Real(Side(number=number), Side(size=size))
            for size in self._rounded([number / value * (number / value) for value in row]):
                yield Real(Side(number=number), Side(size=size, root=True))

    def _rounded(self, row: Sequence[float]) -> list[Size]:
        if any(not abs(value) < 2**52 or abs(value - round(value)) > 1e-9 * max(1.0, abs(value)) for value in row):
            return []
        return self.sizes([round(value) for value in row])

    def _gives(self, made: Real, row: Sequence[float]) -> bool:
        try:
            return bool(made.dims) and all(made.at(at) == value for at, value in zip(self._sizes, row, strict=True))
        except ScheduleError:
            return False


def _combined(parts: Sequence[_Part], row: Sequence[int]) -> Iterator[Size]:
    """The sum of `parts` with integer coefficients, none of them 0, that gives `row`, if there is one."""
    coefficients = _SOLVERS[len(parts) - 1]([part.values for part in parts], row)
    if coefficients is None or 0 in coefficients or any(abs(c) > _LARGEST for c in coefficients):
        return
    lines = [part.values for part in parts]
    for k, wanted in enumerate(row):
        if sum(c * values[k] for c, values in zip(coefficients, lines, strict=True)) != wanted:
            return
    total = constant(0)
    for coefficient, part in zip(coefficients, parts, strict=True):
        term = constant(coefficient)
        for factor in part.factors:
            term = term * factor
        total = total + term
    yield total


def _one_unknown(lines: list[list[int]], row: Sequence[int]) -> tuple[int, ...] | None:
    value = lines[0][0]
    return (row[0] // value,) if value and not row[0] % value else None


def _two_unknowns(lines: list[list[int]], row: Sequence[int]) -> tuple[int, ...] | None:
    (a, c), (b, d) = lines[0][:2], lines[1][:2]
    determinant = a * d - b * c
    if not determinant:
        return None
    first, second = row[0] * d - b * row[1], a * row[1] - row[0] * c
    return None if first % determinant or second % determinant else (first // determinant, second // determinant)


def _three_unknowns(lines: list[list[int]], row: Sequence[int]) -> tuple[int, ...] | None:
    columns = [line[:3] for line in lines]
    whole = _determinant(columns)
    if not whole:
        return None
    found = []
    for k in range(3):
        above = _determinant([list(row[:3]) if at == k else column for at, column in enumerate(columns)])
        if above % whole:
            return None
        found.append(above // whole)
    return tuple(found)


def _determinant(m: list[list[int]]) -> int:
    (a, b, c), (d, e, f), (g, h, i) = m
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


_Solver = Callable[[list[list[int]], Sequence[int]], tuple[int, ...] | None]
_SOLVERS: tuple[_Solver, ...] = (_one_unknown, _two_unknowns, _three_unknowns)


def _products(names: Sequence[str]) -> list[Size]:
    """Products of powers of dimensions, by degree."""
    made: list[tuple[int, Size]] = []
    for powers in itertools.product(range(_DEGREE + 1), repeat=len(names)):
        if 0 < sum(powers) <= _TOTAL:
            factors = [dimension(name) for name, power in zip(names, powers, strict=True) for _ in range(power)]
            made.append((sum(powers), math.prod(factors, start=constant(1))))
    return [size for _, size in sorted(made, key=lambda pair: pair[0])]


def _quotients(name: str, numbers: Collection[int], divisors: Sequence[int]) -> Iterator[Size]:
    """Quotients of a dimension, rounded down; of those that are equal for all numbers that it may be, or was, the simplest."""
    every = np.array(sorted(numbers), dtype=np.int64)
    seen = {every.tobytes()}
    for divisor, scale in itertools.product(sorted(divisors), _SCALES):
        low, high = (-divisor, 2 * divisor) if scale == 1 else (0, divisor)
        for offset in sorted(range(low, high), key=abs):
            values = ((every * scale + offset) // divisor).tobytes()
            if values in seen:
                continue
            size = divided(dimension(name) * constant(scale) + constant(offset), divisor)
            if any(factor.divisor > 1 for term in size.terms for factor in term.factors):
                seen.add(values)
                yield size


def _pairs(some: Sequence[_Part], others: Sequence[_Part]) -> Iterator[tuple[_Part, _Part]]:
    """Both divided by the same, and nothing else."""
    divided_so: dict[int, list[_Part]] = {}
    for other in others:
        divided_so.setdefault(_only_divisor(other), []).append(other)
    for one in some:
        divisor = _only_divisor(one)
        for other in divided_so.get(divisor, ()) if 0 < divisor <= _PAIRED else ():
            yield one, other


def _only_divisor(part: _Part) -> int:
    """Of a quotient that stands alone; 0 for others."""
    (size,) = part.factors
    if len(size.terms) != 1 or size.terms[0].coefficient != 1:
        return 0
    return size.terms[0].factors[0].divisor
