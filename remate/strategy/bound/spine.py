"""The spine of a step: a path through the values that its stages read from one another, and the operations between
them.

In a residual network, the operation that computes the next value of the spine reads the previous one. To have one of
them again, the previous one must be in memory, or be computed again, too. `passes` needs nothing else, so it holds for
any path.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ..chain.chain import Chain, chain_of
from ..instance import StepInstance
from ..problem import Problem
from .cut_step import useful


class SpineLink(msgspec.Struct, frozen=True):
    """Forward operations between two values of a path.

    Attributes:
        source: The storage that the producer of `output` reads; -1 at the beginning of a path.
        output: The storage at the end; -1 after the last one.
        operations: Operations that a recomputation could ever need.
        storages: Storages that a recomputation could ever need.
    """

    source: int
    output: int
    operations: tuple[int, ...]
    storages: tuple[int, ...]


def spine(instance: StepInstance) -> tuple[SpineLink, ...]:
    """Return the links of a step, in forward order. Together they contain all operations of its forward."""
    return instance.view(_built)


def _built(instance: StepInstance) -> tuple[SpineLink, ...]:
    problem = instance.problem
    operations, storages = map(frozenset, useful(problem))
    links: list[SpineLink] = []
    begin = 0
    for source, output in _pairs(problem, chain_of(instance)):
        end = problem.producer[output] + 1 if output >= 0 else problem.backward_start
        inside = [f for f in range(begin, end) if f in operations]
        written = tuple(s for f in inside for s in problem.writes[f] if s in storages)
        links.append(SpineLink(source, output, tuple(inside), written))
        begin = end
    return tuple(links)


def _pairs(problem: Problem, chain: Chain) -> list[tuple[int, int]]:
    """Return neighbours on the path through the largest value between each two stages.

    A new path begins where a value does not depend on the previous one.
    """
    pairs: list[tuple[int, int]] = []
    last = -1
    for stage, following in zip(chain.stages, chain.stages[1:], strict=False):
        inside = [s for f in range(*stage.forward) for s in problem.writes[f] if s not in chain.lasting]
        handed = [s for s in inside if any(i in range(*following.forward) for i in problem.readers[s])]
        if not handed:
            continue
        largest = max(handed, key=lambda s: (problem.size[s], s))
        path = _path(problem, last, largest) if last >= 0 else []
        before = last if path else -1
        for s in path or [largest]:
            pairs.append((before, s))
            before = s
        last = largest
    return [*pairs, (last, -1)]


def _path(problem: Problem, first: int, last: int) -> list[int]:
    """Return the shortest path from one storage to a later one, in which the producer of each storage reads the
    previous one.

    The path excludes `first`. It is empty if there is none.
    """
    low, following = problem.producer[first], {last: -1}
    queue = deque([last])
    while queue and first not in following:
        s = queue.popleft()
        for u in problem.reads[problem.producer[s]]:
            if u not in following and problem.producer[u] >= low:
                following[u] = s
                queue.append(u)
    path: list[int] = []
    at = following.get(first, -1)
    while at >= 0:
        path.append(at)
        at = following[at]
    return path
