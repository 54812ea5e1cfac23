"""Fits expressions of sizes to known numbers at known sizes: all expressions of a small grammar, not only the first.

Candidates of a row, from simple to complex: sums of up to two products of dimensions and a number; products in which
one or two dimensions are divided, rounding down; sums of three products; products with a division, plus a further
product or number; products of sizes of tensors, sums and quotients of them. Coefficients are solved exactly from as
many sizes as there are unknowns, and checked at all others. The divisors are given: a step divides by numbers that
occur in it (strides of convolutions and pools) or by which forward divides.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Real, Side, Size, constant, divided

from .composed import Composing, dividends, joined, products, remainders, sums
from .parts import ExpressionProduct, Products, products_of, quotients_of

_NUMERATORS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 4.0, 16.0)
_DENOMINATORS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_LARGEST = 1 << 60
_TELLING = 4  # numbers of a row that identify its expression


class SizeFitter:
    """Fits expressions to rows.

    Args:
        ranges: For each dimension all relevant sizes.
        sizes: The sizes of the rows' numbers, in order.
        divisors: Divisors to try.
        parts: Returns rows of which others may be composed, for a row without a simpler expression.
    """

    def __init__(
        self,
        ranges: Mapping[str, Sequence[int]],
        sizes: Sequence[Mapping[str, int]],
        divisors: Sequence[int],
        parts: Callable[[], Collection[tuple[int, ...]]] = tuple,
    ) -> None:
        self._ranges, self._sizes, self._divisors, self._parts = ranges, sizes, divisors, parts
        self._found_parts: dict[tuple[int, ...], Callable[[], list[Size]]] | None = None
        self._partial: dict[tuple[bool, ...], SizeFitter] = {}
        self._known: dict[tuple[int, ...], list[Size]] = {}
        self._dividends: dict[tuple[int, ...], list[Size]] = {}
        self._one = self._part(constant(1))
        self._products = [self._part(size) for size in products_of(list(ranges))]
        self._quotient_parts: Products | None = None

    def expressions(self, row: Sequence[int | float | None]) -> Sequence[Size | Real]:
        """Return the expressions of a row of integers or of floats. None in a row matches any number."""
        if None in row:
            return self.where(tuple(number is not None for number in row)).expressions(
                [n for n in row if n is not None]
            )
        if all(type(number) is int for number in row):
            return self.sizes([int(number or 0) for number in row])
        return self.reals([float(number or 0) for number in row])

    def where(self, known: tuple[bool, ...]) -> SizeFitter:
        """Return the fitter of the sizes at which a number is known."""
        if known not in self._partial:
            sizes = [at for at, is_known in zip(self._sizes, known, strict=True) if is_known]
            fitter = SizeFitter(self._ranges, sizes, self._divisors)
            whole = self._those_parts() if sum(known) >= _TELLING else {}
            fitter._found_parts = {
                tuple(n for n, is_known in zip(row, known, strict=True) if is_known): expressions
                for row, expressions in whole.items()
            }
            self._partial[known] = fitter
        return self._partial[known]

    def elsewhere(self, sizes: Sequence[Mapping[str, int]]) -> SizeFitter:
        """Return the fitter of rows at other sizes."""
        return SizeFitter(self._ranges, sizes, self._divisors)

    def sizes(self, row: Sequence[int]) -> list[Size]:
        """Return all integer expressions of the grammar that give `row`, the simplest first."""
        key = tuple(row)
        if key not in self._known:
            self._known[key] = [constant(key[0])] if len(set(key)) == 1 else self._searched(key)
        return self._known[key]

    def _searched(self, row: tuple[int, ...]) -> list[Size]:
        sizes = self._plain(row) or [*self._composed(row, products)] or [*self._composed(row, sums)]
        for more in [self._one, *self._products] if len(row) > 2 else ():
            sizes = sizes or list(self._quotients(row, more))
        return list(dict.fromkeys(sizes or self._divided_parts(row)))

    def _plain(self, row: tuple[int, ...]) -> list[Size]:
        """Return the expressions of a row for which no other row is needed."""
        return [*self._sums(row), *self._quotients(row)] or [*self._sums_of_three(row)]

    def _divided_parts(self, row: tuple[int, ...]) -> Iterator[Size]:
        """Yield quotients of larger rows, such as `(5*b*t)//16` where a pool runs over a flattened batch, and rests."""
        if max(row) <= 0:  # backward cuts what forward pads
            yield from (size * constant(-1) for size in self.sizes([-number for number in row]))
            return
        parts = [*self._those_parts()] if len(row) >= _TELLING else []
        larger = [part for part in parts if sum(part) > sum(row)]
        for divisor in self._divisors:
            yield from self._whole_parts(row, larger, divisor, 1)
            if all(number % divisor == 0 for number in row):  # rounded to a multiple
                near = [part for part in parts if max(abs(a - b) for a, b in zip(part, row, strict=True)) < divisor]
                yield from self._whole_parts(tuple(number // divisor for number in row), near, divisor, divisor)
        for part, divisor, sign in remainders(row, larger, self._divisors):
            for size in self._dividend(part):
                with contextlib.suppress(ScheduleError):  # more than a file may hold
                    signed = size * constant(sign)
                    yield signed + divided(signed, divisor) * constant(-divisor)

    def _whole_parts(
        self, row: tuple[int, ...], parts: Sequence[tuple[int, ...]], divisor: int, multiple: int
    ) -> Iterator[Size]:
        """Yield the multiple of quotients of `parts` that give `row`."""
        for part, offsets in dividends(row, parts, divisor):
            for size, offset in itertools.product(self._dividend(part), sorted(offsets, key=abs)):
                with contextlib.suppress(ScheduleError):
                    yield divided(size + constant(offset), divisor) * constant(multiple)

    def _dividend(self, part: tuple[int, ...]) -> list[Size]:
        """Return the first expression of a row that may be divided; none while one is looked for."""
        if part not in self._dividends:
            self._dividends[part] = []
            self._dividends[part] = (self._plain(part) or [*self._divided_parts(part)])[:1]
        return self._dividends[part]

    def _composed(self, row: tuple[int, ...], composing: Composing) -> Iterator[Size]:
        """Yield products or sums of parts that are simpler than the row, by the first expression of each part."""
        if len(row) < _TELLING or min(row) < 0:
            return
        less = [part for part in self._those_parts() if sum(part) < sum(row) and part != row]
        expression_of = {part: fits[0] for part in less if (fits := self._those_parts()[part]())}
        for number, parts in composing(row, list(expression_of)):
            try:
                yield joined(composing, number, [expression_of[part] for part in parts])
            except ScheduleError:  # more than a file may hold
                continue

    def _those_parts(self) -> dict[tuple[int, ...], Callable[[], list[Size]]]:
        """Return varying parts, the smallest first, with functions that return their expressions."""
        if self._found_parts is None:
            rows = sorted({row for row in self._parts() if len(set(row)) > 1}, key=lambda row: (sum(row), row))
            self._found_parts = {row: partial(self.sizes, row) for row in rows}
        return self._found_parts

    def _quotients(self, row: tuple[int, ...], more: ExpressionProduct | None = None) -> Iterator[Size]:
        """Yield multiples of products with a division, plus a multiple of a further product.

        Floats are compared first, thousands at once: values that are not close cannot be equal.
        """
        parts = self._divided()
        if not len(parts.values):
            return
        for at in parts.near(row) if more is None else parts.near_with(row, more):
            yield from _combined([parts.part(at)] if more is None else [parts.part(at), more], row)

    def _divided(self) -> Products:
        """Return products with a division, and their squares; computed on first use."""
        if self._quotient_parts is None:
            numbers = {
                name: frozenset((*every, *(at[name] for at in self._sizes))) for name, every in self._ranges.items()
            }
            divisors = tuple(self._divisors)
            quotients = [[self._part(size) for size in quotients_of(name, numbers[name], divisors)] for name in numbers]
            self._quotient_parts = Products(quotients, [self._one, *self._products])
        return self._quotient_parts

    def reals(self, row: Sequence[float]) -> list[Real]:
        """Return all floats of the grammar that equal `row` bitwise: size, sqrt(size), size/n, n/size, n/sqrt(size)."""
        return list(dict.fromkeys(real for real in self._reals(row) if self._gives(real, row)))

    def bound(self, row: Sequence[int | None]) -> Size:
        """Return a multiple of a product of dimensions, plus a number, that is nowhere below the known numbers of
        `row`.

        It is the closest at the first known size; of these, the closest overall.
        """
        at = [k for k, wanted in enumerate(row) if wanted is not None]
        wanted = [number for number in row if number is not None]
        best: tuple[int, float, Size] | None = None
        for part in self._products:
            values = [part.values[k] for k in at]
            for slope in _slopes(values, wanted):
                offset = max(number - slope * value for number, value in zip(wanted, values, strict=True))
                bounds = [slope * value + offset for value in values]
                loose = sum(bounded / max(number, 1) for bounded, number in zip(bounds, wanted, strict=True))
                if best is None or (bounds[0], loose) < best[:2]:
                    best = bounds[0], loose, part.factors[0] * constant(slope) + constant(offset)
        assert best is not None
        return best[2]

    def _part(self, size: Size) -> ExpressionProduct:
        return ExpressionProduct((size,), [size.at(at) for at in self._sizes])

    def _sums(self, row: Sequence[int]) -> Iterator[Size]:
        for count in (1, 2, 3):
            if count < len(row):
                for chosen in itertools.combinations(self._products, count):
                    if count < 3:
                        yield from _combined(chosen, row)
                for chosen in itertools.combinations(self._products, count - 1) if count > 1 else ():
                    yield from _combined([*chosen, self._one], row)

    def _sums_of_three(self, row: Sequence[int]) -> Iterator[Size]:
        """Yield sums like `b*t+b*s+b`, the joint size of several joined inputs."""
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

    def _gives(self, expression: Real, row: Sequence[float]) -> bool:
        try:
            return bool(expression.dims) and all(
                expression.at(at) == value for at, value in zip(self._sizes, row, strict=True)
            )
        except ScheduleError:
            return False


def _combined(parts: Sequence[ExpressionProduct], row: Sequence[int]) -> Iterator[Size]:
    """Yield the sum of `parts` with integer coefficients, none of them 0, that gives `row`, if there is one."""
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


def _slopes(values: Sequence[int], wanted: Sequence[int]) -> set[int]:
    """Return possible integer slopes: between the first point and each other, and the least that suffices alone."""
    slopes = {0, *(-(-number // value) for number, value in zip(wanted, values, strict=True))}
    for value, number in zip(values[1:], wanted[1:], strict=True):
        if value != values[0]:
            slope = (number - wanted[0]) // (value - values[0])
            slopes |= {max(slope, 0), max(slope + 1, 0)}
    return slopes


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
    solution: list[int] = []
    for k in range(3):
        above = _determinant([list(row[:3]) if at == k else column for at, column in enumerate(columns)])
        if above % whole:
            return None
        solution.append(above // whole)
    return tuple(solution)


def _determinant(m: list[list[int]]) -> int:
    (a, b, c), (d, e, f), (g, h, i) = m
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


_Solver = Callable[[list[list[int]], Sequence[int]], tuple[int, ...] | None]
_SOLVERS: tuple[_Solver, ...] = (_one_unknown, _two_unknowns, _three_unknowns)
