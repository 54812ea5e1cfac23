"""Backward values live equally long in every schedule: the one account of them, for formulations and bounds.

Only forward operations are recomputed, and only forward storages are evicted and computed again. So the rest is a known
number of bytes at every operation, before anything is planned. One part is a lower limit: gradients that are freed when
they are delivered stay longer where a recomputation reads their parameter later.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import msgspec

from .problem import Problem


class Holding(msgspec.Struct, frozen=True):
    """Bytes in memory while the operations from `first` to `last` run.

    given: they are in memory before `first`; otherwise, `first` computes them. overwritten: the result of `last` takes
    their place, unless the plan frees a forward storage there that `last` prefers to overwrite.
    """

    nbytes: int
    first: int
    last: int
    given: bool = False
    overwritten: bool = False


def backward_holdings(problem: Problem) -> list[Holding]:
    """Tangents, what backward operations make, and the outputs of the model once forward has ended."""
    end = len(problem.real) - 1
    holdings = [Holding(nbytes, problem.backward_start, last, given=True) for nbytes, last in problem.tangents]
    holdings += [
        Holding(problem.size[s], problem.backward_start, end, given=True)
        for s in sorted(problem.returned)
        if problem.producer[s] < problem.backward_start
    ]
    for i in problem.backward:
        for s in problem.writes[i]:
            if s in problem.gradients:
                holdings.append(Holding(problem.size[s], i, problem.held_until(s)))
            elif problem.readers[s]:
                last = problem.readers[s][-1]
                over = problem.overwrites[last] == s
                holdings.append(Holding(problem.size[s], i, last, overwritten=over))
            else:
                holdings.append(Holding(problem.size[s], i, i))
    return holdings


def levels(count: int, held: Iterable[tuple[int, int, int]]) -> list[int]:
    """Bytes at each of `count` places.

    held: (bytes, first place, last place); empty where the last place is before the first.
    """
    change = [0] * (count + 1)
    for nbytes, first, last in held:
        if first <= last:
            change[first] += nbytes
            change[last + 1] -= nbytes
    return list(accumulate(change))[:count]
