"""Numbers that are composed of other numbers of the same step.

These are products of sizes of its tensors (strides, and the square of a product in attention over a flattened image),
sums of them (several joined maps), and quotients of them (a pool over a flattened batch).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from remate_runtime.format import Size, constant

Row = tuple[int, ...]
Composing = Callable[[Row, Sequence[Row]], Iterator[tuple[int, tuple[Row, ...]]]]
_FACTORS = 5  # of a product
_SUMMANDS = 5
_LOOKED_AT = 1 << 15  # partial products, or sums of one length, of one row at most
_LARGEST = 1 << 40


def products(row: Row, known: Sequence[Row]) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield a number and one or more of `known`, with repetition, whose product is `row` everywhere."""
    whole = [each for each in known if 0 not in each]
    left = itertools.repeat(None, _LOOKED_AT)
    open_ones: list[tuple[Row, int, tuple[Row, ...]]] = [(row, 0, ())]
    while open_ones:
        rest, start, taken = open_ones.pop()
        for at, _ in zip(range(start, len(whole)), left, strict=False):
            each = whole[at]
            if any(wanted % number for wanted, number in zip(rest, each, strict=True)):
                continue
            below = tuple(wanted // number for wanted, number in zip(rest, each, strict=True))
            factors = (*taken, each)
            if len(set(below)) == 1:
                yield below[0], factors
            elif len(factors) < _FACTORS:
                open_ones.append((below, at, factors))


def sums(row: Row, known: Sequence[Row]) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield a non-negative number and one or more of `known`, with repetition, whose sum is `row` everywhere.

    Only those with the fewest summands. All sums are tried at once, by a hash that equal rows share; results are
    checked against the row.
    """
    if not known or max(row) > _LARGEST:
        return
    rows = np.array(known, dtype=np.int64)
    mark = np.random.default_rng(0).integers(1, _LARGEST, len(row)) | 1
    marks = (rows - rows[:, :1]) @ mark
    wanted = np.array(row, dtype=np.int64)
    for count in range(_SUMMANDS):
        if math.comb(len(known) + count - 1, count) > _LOOKED_AT:
            return
        chosen = np.array(list(itertools.combinations_with_replacement(range(len(known)), count)), dtype=int)
        rest = wanted - rows[chosen].sum(1)
        close = np.flatnonzero(np.isin((rest - rest[:, :1]) @ mark, marks) & (rest.min(1) >= 0))
        solutions = {
            (rest[0] - last[0], tuple(sorted((*some, last))))
            for some, rest, last in _ended(row, close.tolist(), chosen.tolist(), known)
        }
        yield from sorted(solutions)
        if solutions:
            return


def dividends(row: Row, known: Sequence[Row], divisor: int) -> Iterator[tuple[Row, range]]:
    """Yield some of `known`, with every offset for which `(known + offset) // divisor` is `row`."""
    known = [each for each in known if max(each) <= _LARGEST]
    rows, wanted = np.array(known, dtype=np.int64).reshape(len(known), len(row)), np.array(row, dtype=np.int64)
    lacking = wanted * divisor - rows
    low, high = lacking.max(1), lacking.min(1) + divisor
    for at in np.flatnonzero(low < high).tolist():
        yield known[at], range(int(low[at]), int(high[at]))


def remainders(row: Row, known: Sequence[Row], divisors: Sequence[int]) -> Iterator[tuple[Row, int, int]]:
    """Yield some of `known` with a divisor and a sign for which `sign * known % divisor` is `row`."""
    for each, divisor, sign in itertools.product(known, divisors, (1, -1)) if min(row) >= 0 else ():
        if max(row) < divisor and all(sign * n % divisor == rest for n, rest in zip(each, row, strict=True)):
            yield each, divisor, sign


def joined(composing: Composing, number: int, parts: Sequence[Size]) -> Size:
    """Return the product or sum as an expression. Raises ScheduleError R024 if it is larger than a file may contain."""
    result = constant(number)
    for part in parts:
        result = result * part if composing is products else result + part
    return result


def _ended(
    row: Row, close: Sequence[int], chosen: Sequence[Sequence[int]], known: Sequence[Row]
) -> Iterator[tuple[list[Row], Row, Row]]:
    """Yield sums that one more row completes to `row`, except for a constant: the summands, the rest, and the last
    row."""
    for at in close:
        some = [known[each] for each in chosen[at]]
        rest = tuple(wanted - sum(numbers) for wanted, *numbers in zip(row, *some, strict=True))
        for last in known:
            if last[0] <= rest[0] and len({lacking - number for lacking, number in zip(rest, last, strict=True)}) == 1:
                yield some, rest, last
