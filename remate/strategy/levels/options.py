"""What a plan of a part means to the node above it: what it holds from forward to backward, and what it takes to have that
again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remate_runtime.step import FlatRerun

from ...partition.hierarchy import BlockSpan
from ..blocks.block_plan import BlockPlan
from ..chain.chain import closure
from ..problem import Problem


class Option(msgspec.Struct, frozen=True):
    """One plan of a part, over the operations of the node above. plan: with figures in bytes and ns. inner: bytes that it
    holds from forward to backward beside what others read, too. again: operations that make all of this again, in order;
    empty if some may not run again. time: ns of these. reads: storages of other parts that its backward reads; forward_reads:
    those that `again` reads."""

    plan: BlockPlan
    inner: int
    again: tuple[int, ...]
    time: int
    reads: frozenset[int]
    forward_reads: frozenset[int]


class Part(msgspec.Struct, frozen=True):
    """A part of a node. forward, backward: ranges of the node's operations. shared: storages that it makes and others read.
    options: by what they hold, the least first; the one without reruns is among them, at `keep`."""

    forward: tuple[int, int]
    backward: tuple[int, int]
    shared: tuple[int, ...]
    options: tuple[Option, ...]
    keep: int


def part(problem: Problem, span: BlockSpan, plans: Sequence[BlockPlan]) -> Part:
    """A part of a node. problem: of the node; span: over its operations; plans: of the part, over its own."""
    (begin, end), (first, stop) = span.forward, span.backward
    shared = tuple(
        s
        for f in range(begin, end)
        for s in problem.writes[f]
        if s in problem.pinned or any(not (begin <= i < end or first <= i < stop) for i in problem.readers[s])
    )
    options = sorted((_option(problem, span, shared, plan) for plan in plans), key=lambda o: (o.inner, o.plan.time))
    keep = next(n for n, option in enumerate(options) if not option.plan.reruns)
    return Part(span.forward, span.backward, shared, tuple(options), keep)


def mapped(span: BlockSpan | Part, reruns: Sequence[FlatRerun]) -> list[FlatRerun]:
    """Reruns over a part's own operations as reruns over those of the node above."""
    (begin, end), first = span.forward, span.backward[0]
    turn = end - begin
    return [FlatRerun(begin + r.op, first + r.before - turn if r.before >= turn else begin + r.before) for r in reruns]


def _option(problem: Problem, span: BlockSpan, shared: Sequence[int], plan: BlockPlan) -> Option:
    begin, end = span.forward
    held, outside = _first_reads(problem, span, mapped(span, plan.reruns))
    outputs = frozenset(shared)
    again = closure(problem, sorted(held | outputs), begin, frozenset())
    reads = {s for f in again for s in problem.reads[f] if not begin <= problem.producer[s] < end}
    if any(f in problem.once for f in again):
        again = ()
    return Option(
        plan,
        sum(problem.size[s] for s in held - outputs),
        again,
        sum(problem.time[f] for f in again),
        frozenset(outside),
        frozenset(reads),
    )


def _first_reads(
    problem: Problem, span: BlockSpan, reruns: Sequence[FlatRerun]
) -> tuple[frozenset[int], frozenset[int]]:
    """Storages that the backward of a part, with these reruns in it, reads before it makes them again: those that its forward
    makes, and those of the forward of other parts."""
    turn, (begin, end) = problem.backward_start, span.forward
    before: dict[int, list[int]] = {}
    for rerun in reruns:
        if rerun.before >= turn:
            before.setdefault(rerun.before, []).append(rerun.op)
    made, held, outside = set[int](), set[int](), set[int]()
    for i in range(*span.backward):
        for op in (*before.get(i, ()), i):
            for s in problem.reads[op]:
                if s not in made and problem.producer[s] < turn:
                    (held if begin <= problem.producer[s] < end else outside).add(s)
            if op < turn:
                made.update(problem.writes[op])
    return frozenset(held), frozenset(outside)
