"""Plans of a part as options of the node above: bytes held from forward to backward, and the cost of computing them
again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remate_runtime.flat_step import FlatRecompute

from ...partition.hierarchy import BlockSpan
from ..blocks.block_plan import BlockPlan
from ..chain.chain import closure
from ..problem import Problem


class PartOption(msgspec.Struct, frozen=True):
    """One plan of a part, over the operations of the node above.

    Attributes:
        plan: With figures in bytes and ns.
        inner: Bytes that it holds from forward to backward, except storages that other parts read.
        again: Operations that compute all of this again, ascending; empty if some may not run again.
        time: ns of `again`.
        reads: Storages of other parts that its backward reads.
        forward_reads: Storages of other parts that `again` reads.
    """

    plan: BlockPlan
    inner: int
    again: tuple[int, ...]
    time: int
    reads: frozenset[int]
    forward_reads: frozenset[int]


class LevelPart(msgspec.Struct, frozen=True):
    """A part of a node.

    Attributes:
        forward: Range of the node's operations.
        backward: Range of the node's operations.
        shared: Storages that it writes and others read.
        options: Its plans, ordered by the bytes that they hold.
        keep: Position of the plan without recomputation in `options`.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]
    shared: tuple[int, ...]
    options: tuple[PartOption, ...]
    keep: int


def part(problem: Problem, span: BlockSpan, plans: Sequence[BlockPlan]) -> LevelPart:
    """Return a part of a node.

    Args:
        problem: The node.
        span: The part's ranges over the node's operations.
        plans: Plans of the part, over its own operations.
    """
    (begin, end), (first, stop) = span.forward, span.backward
    shared = tuple(
        s
        for f in range(begin, end)
        for s in problem.writes[f]
        if s in problem.pinned or any(not (begin <= i < end or first <= i < stop) for i in problem.readers[s])
    )
    options = sorted((_option(problem, span, shared, plan) for plan in plans), key=lambda o: (o.inner, o.plan.time))
    keep = next(n for n, option in enumerate(options) if not option.plan.recomputes)
    return LevelPart(span.forward, span.backward, shared, tuple(options), keep)


def mapped(span: BlockSpan | LevelPart, recomputes: Sequence[FlatRecompute]) -> list[FlatRecompute]:
    """Convert recomputations over a part's own operations to those of the node above."""
    (begin, end), first = span.forward, span.backward[0]
    backward_start = end - begin
    return [
        FlatRecompute(
            begin + r.op, first + r.before - backward_start if r.before >= backward_start else begin + r.before
        )
        for r in recomputes
    ]


def _option(problem: Problem, span: BlockSpan, shared: Sequence[int], plan: BlockPlan) -> PartOption:
    begin, end = span.forward
    held, outside = _first_reads(problem, span, mapped(span, plan.recomputes))
    outputs = frozenset(shared)
    again = closure(problem, sorted(held | outputs), begin, frozenset())
    reads = {s for f in again for s in problem.reads[f] if not begin <= problem.producer[s] < end}
    if any(f in problem.once for f in again):
        again = ()
    return PartOption(
        plan,
        sum(problem.size[s] for s in held - outputs),
        again,
        sum(problem.time[f] for f in again),
        frozenset(outside),
        frozenset(reads),
    )


def _first_reads(
    problem: Problem, span: BlockSpan, recomputes: Sequence[FlatRecompute]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return storages that the backward of a part reads before it computes them again.

    Returns:
        Storages of the part's own forward, and storages of other parts.
    """
    backward_start, (begin, end) = problem.backward_start, span.forward
    before: dict[int, list[int]] = {}
    for recompute in recomputes:
        if recompute.before >= backward_start:
            before.setdefault(recompute.before, []).append(recompute.op)
    computed, held, outside = set[int](), set[int](), set[int]()
    for i in range(*span.backward):
        for op in (*before.get(i, ()), i):
            for s in problem.reads[op]:
                if s not in computed and problem.producer[s] < backward_start:
                    (held if begin <= problem.producer[s] < end else outside).add(s)
            if op < backward_start:
                computed.update(problem.writes[op])
    return frozenset(held), frozenset(outside)
