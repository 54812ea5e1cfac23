"""Bytes of backward values, which every schedule holds equally long, for formulations and bounds.

Only forward operations are recomputed, and only forward storages are evicted. So the bytes of all other storages are
known at every operation before anything is planned. One part is a lower limit: gradients that are freed when they are
delivered stay longer where a recomputation reads their parameter later.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import msgspec

from .problem import Problem


class Holding(msgspec.Struct, frozen=True):
    """Bytes that are in memory while the operations from `first` to `last` run.

    Attributes:
        nbytes: Bytes.
        first: The first operation.
        last: The last operation.
        given: Whether they are in memory before `first`; otherwise `first` computes them.
        overwritten: Whether the result of `last` takes their place. It does not if `last` prefers to overwrite a
            forward storage that the plan frees there.
    """

    nbytes: int
    first: int
    last: int
    given: bool = False
    overwritten: bool = False


def backward_holdings(problem: Problem) -> list[Holding]:
    """Return tangents, results of backward operations, and, after the forward, the outputs of the model."""
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
    """Return the bytes in memory at each of `count` places.

    Args:
        count: Number of places.
        held: (bytes, first place, last place). An entry whose last place is before its first place is empty.
    """
    change = [0] * (count + 1)
    for nbytes, first, last in held:
        if first <= last:
            change[first] += nbytes
            change[last + 1] -= nbytes
    return list(accumulate(change))[:count]
