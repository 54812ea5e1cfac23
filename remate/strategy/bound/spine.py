"""The spine of a step: the values that its stages hand on to one another, as a path, and the operations between them.

In a residual network, each value that is handed on is read by the operation that computes the next one: to have one of
them again, the one before it must be in memory, or be computed again, too. That is all that `passes` needs, and it
holds for any path.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ..chain.chain import Chain, chain_of
from ..instance import StepInstance
from ..problem import Problem
from .cut_model import useful


class SpineLink(msgspec.Struct, frozen=True):
    """Forward operations between two values of a path.

    source: the storage that the producer of `output` reads, -1 where a path begins. output: -1 after the last one.
    operations, storages: those that a recomputation could ever need.
    """

    source: int
    output: int
    operations: tuple[int, ...]
    storages: tuple[int, ...]


def spine(instance: StepInstance) -> tuple[SpineLink, ...]:
    """The links of a step, in forward order: together, all operations of its forward."""
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
    """Neighbours on the path through what stages hand on, the largest of each; a new path begins where a value does not
    depend on the one before."""
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
    """The shortest path from one storage to a later one, each read by the producer of the next; without `first`, and
    empty if there is none."""
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
