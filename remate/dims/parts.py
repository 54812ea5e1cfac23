"""Parts of expressions: products of dimensions, quotients of dimensions, and products of both, tried thousands at
once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from remate_runtime.format import Size, constant, dimension, divided

_DEGREE, _TOTAL = 2, 3  # of one dimension, of a product
_SCALES = (1, 2, 3)  # of a dimension that is divided
_PAIRED = 64  # the largest divisor of two dimensions that are multiplied


class ExpressionProduct:
    """A product of expressions, and its values at the known sizes."""

    def __init__(self, factors: tuple[Size, ...], values: list[int]) -> None:
        self.factors, self.values = factors, values

    def times(self, other: ExpressionProduct) -> ExpressionProduct:
        return ExpressionProduct(
            (*self.factors, *other.factors), [a * b for a, b in zip(self.values, other.values, strict=True)]
        )


class Products:
    """Each of `divided`, squared and not, and products of two of different dimensions with the same divisor, times
    `others`.

    Args:
        divided: Quotients by dimension.

    Attributes:
        values: A row for each product, in floats: values that are not close cannot be equal.
    """

    def __init__(self, divided: Sequence[Sequence[ExpressionProduct]], others: Sequence[ExpressionProduct]) -> None:
        self._divided_products, self._others = [part for each in divided for part in each], others
        count = len(self._divided_products)
        singles, squares = [(at, count) for at in range(count)], [(at, at) for at in range(count)]
        self._pairs = [*singles, *squares, *_alike(divided)]
        left, right = (
            np.array([part.values for part in parts], dtype=float) for parts in (self._divided_products, others)
        )
        width = right.shape[1]
        left = np.concatenate([left.reshape(-1, width), np.ones((1, width))])
        first, second = np.array(self._pairs, dtype=int).reshape(-1, 2).T
        self.values: Any = ((left[first] * left[second])[:, None] * right[None]).reshape(-1, width)

    def part(self, at: int) -> ExpressionProduct:
        """Return the product of a row."""
        pair, other = divmod(int(at), len(self._others))
        first, second = self._pairs[pair]
        product = self._divided_products[first]
        return (
            product if second == len(self._divided_products) else product.times(self._divided_products[second])
        ).times(self._others[other])

    def near(self, row: Sequence[int]) -> list[int]:
        """Return the rows of which a multiple may be `row`."""
        values, wanted = self.values, np.array(row, dtype=float)
        with np.errstate(all="ignore"):
            some = np.flatnonzero(_whole(wanted[0] / values[:, 0]))
            return some[_close(values[some] * (wanted[0] / values[some, :1]), wanted)].tolist()

    def near_with(self, row: Sequence[int], more: ExpressionProduct) -> list[int]:
        """Return the rows of which a multiple, plus a multiple of `more`, may be `row`."""
        values, wanted = self.values, np.array(row, dtype=float)
        line = np.array(more.values, dtype=float)
        with np.errstate(all="ignore"):
            determinants = values[:, 0] * line[1] - values[:, 1] * line[0]
            first = (wanted[0] * line[1] - wanted[1] * line[0]) / determinants
            second = (values[:, 0] * wanted[1] - values[:, 1] * wanted[0]) / determinants
            some = np.flatnonzero(_whole(first) & _whole(second))
            return some[_close(first[some, None] * values[some] + second[some, None] * line, wanted)].tolist()


def _whole(numbers: Any) -> Any:
    """Return where there may be integers other than 0."""
    return (np.abs(numbers - np.rint(numbers)) <= 1e-4 * np.maximum(1.0, np.abs(numbers))) & (np.abs(numbers) > 0.5)


def _close(values: Any, wanted: Any) -> Any:
    return np.all(np.abs(values - wanted) <= 1e-6 * np.abs(wanted) + 1e-3, axis=1)


def products_of(names: Sequence[str]) -> list[Size]:
    """Return products of powers of dimensions, by degree."""
    sizes: list[tuple[int, Size]] = []
    for powers in itertools.product(range(_DEGREE + 1), repeat=len(names)):
        if 0 < sum(powers) <= _TOTAL:
            factors = [dimension(name) for name, power in zip(names, powers, strict=True) for _ in range(power)]
            sizes.append((sum(powers), math.prod(factors, start=constant(1))))
    return [size for _, size in sorted(sizes, key=lambda pair: pair[0])]


@lru_cache(maxsize=64)
def quotients_of(name: str, numbers: frozenset[int], divisors: tuple[int, ...]) -> tuple[Size, ...]:
    """Return quotients of a dimension, rounded down; of those that are equal in its range, the simplest."""
    every = np.array(sorted(numbers), dtype=np.int64)
    seen, quotients = {every.tobytes()}, list[Size]()
    for divisor, scale in itertools.product(sorted(divisors), _SCALES):
        low, high = (-divisor, 2 * divisor) if scale == 1 else (0, divisor)
        for offset in sorted(range(low, high), key=abs):
            values = ((every * scale + offset) // divisor).tobytes()
            if values in seen:
                continue
            size = divided(dimension(name) * constant(scale) + constant(offset), divisor)
            if any(factor.divisor > 1 for term in size.terms for factor in term.factors):
                seen.add(values)
                quotients.append(size)
    return tuple(quotients)


def _alike(divided: Sequence[Sequence[ExpressionProduct]]) -> Iterator[tuple[int, int]]:
    """Yield numbers of parts of two dimensions that have the same divisor, and nothing else."""
    starts = itertools.accumulate(map(len, divided), initial=0)
    by_divisor: list[dict[int, list[int]]] = []
    for start, parts in zip(starts, divided, strict=False):
        parts_of: dict[int, list[int]] = {}
        for at, part in enumerate(parts, start):
            parts_of.setdefault(_only_divisor(part), []).append(at)
        by_divisor.append(parts_of)
    for some, others in itertools.combinations(by_divisor, 2):
        for divisor in some:
            if 0 < divisor <= _PAIRED:
                yield from itertools.product(some[divisor], others.get(divisor, ()))


def _only_divisor(part: ExpressionProduct) -> int:
    """Return the divisor of a quotient without other factors; 0 for others."""
    (size,) = part.factors
    if len(size.terms) != 1 or size.terms[0].coefficient != 1:
        return 0
    return size.terms[0].factors[0].divisor
