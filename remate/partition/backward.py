"""Assigns each backward operation to the forward block that it differentiates. Backward runs the blocks in reverse.

An operation's block is at most the lowest block of the backward operations that it depends on. Within a block, the
captured order stays. So the new order is topological, whichever block is guessed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from remate_runtime.flat_step import Graph

from ..capture.captured import Captured


def assign(captured: Captured, block_of: Sequence[int]) -> list[int]:
    """Return the block of every operation, including backward.

    Args:
        captured: The step.
        block_of: The block of each forward operation.
    """
    graph, blocks = (
        captured.graph,
        [*block_of, *[-1] * (len(captured.graph.operations) - captured.graph.backward_start)],
    )
    touched = _touched(graph, block_of)
    of_module: dict[str, list[int]] = {}
    for i in range(graph.backward_start):
        seen = of_module.setdefault(captured.modules[i], [])
        if not seen or seen[-1] != block_of[i]:
            seen.append(block_of[i])
    last = max(block_of, default=0)
    free = [False] * len(graph.operations)  # whether the operation depends on no gradient, so it may run at any time
    current = last  # block of the latest operation whose block is certain: autograd goes back through forward
    draw = -1  # the latest random backward operation; these keep their order, because they share a generator
    for i in range(graph.backward_start, len(graph.operations)):
        op = graph.operations[i]
        needs = [p for v in op.reads if (p := graph.values[v].producer) >= graph.backward_start]
        if op.random and draw >= 0:
            needs.append(draw)
        high = min((blocks[p] for p in needs), default=last)
        free[i] = (
            all(free[p] for p in needs)
            and not op.random
            and not any(graph.values[v].kind == "tangent" for v in op.reads)
        )
        modules = of_module.get(captured.modules[i], [])
        likely = [high] if free[i] else _candidates(graph, i, high, modules, touched)
        blocks[i] = max((b for b in likely if b <= current), default=likely[0])
        if len(likely) == 1 and not free[i]:
            current = likely[0]
        draw = i if op.random else draw
    _delay(graph, blocks, free)
    return blocks


def reorder(captured: Captured, blocks: Sequence[int]) -> tuple[Captured, tuple[int, ...]]:
    """Return the step with backward in reverse block order, and the old index of every operation."""
    graph = captured.graph
    backward = sorted(range(graph.backward_start, len(graph.operations)), key=lambda i: (-blocks[i], i))
    order = (*range(graph.backward_start), *backward)
    new = {old: k for k, old in enumerate(order)}
    values = tuple(v if v.producer < 0 else msgspec.structs.replace(v, producer=new[v.producer]) for v in graph.values)
    moved = msgspec.structs.replace(graph, values=values, operations=tuple(graph.operations[i] for i in order))
    modules = tuple(captured.modules[i] for i in order)
    return msgspec.structs.replace(captured, graph=moved, modules=modules), order


def _touched(graph: Graph, block_of: Sequence[int]) -> dict[int, set[int]]:
    """Return for every forward value (by storage) the blocks that produce or read it."""
    touched: dict[int, set[int]] = {}
    for i in range(graph.backward_start):
        for v in (*graph.operations[i].reads, *graph.operations[i].writes):
            if v is not None:
                touched.setdefault(graph.root[v], set()).add(block_of[i])
    return touched


def _candidates(graph: Graph, i: int, high: int, modules: Sequence[int], touched: dict[int, set[int]]) -> list[int]:
    """Return the blocks, at most `high`, that may contain the forward operation of backward operation i.

    Such a block produces or reads all forward values that operation i reads, and runs its module.
    """
    saved = [touched[graph.root[v]] for v in graph.operations[i].reads if graph.root[v] in touched]
    by_module = modules[: bisect_right(modules, high)]
    if not saved:
        return [high] if high in by_module or not by_module else [by_module[-1]]
    common = saved[0].intersection(*saved[1:])
    reach = sorted(b for b in common if b <= high)
    return [b for b in by_module if b in reach] or reach or [high]


def _delay(graph: Graph, blocks: list[int], free: Sequence[bool]) -> None:
    """Move operations that depend on no gradient down to the first block that reads them."""
    wanted = [-1] * len(blocks)
    for i in range(len(blocks) - 1, graph.backward_start - 1, -1):
        if free[i] and wanted[i] >= 0:
            blocks[i] = wanted[i]
        for v in graph.operations[i].reads:
            if (p := graph.values[v].producer) >= graph.backward_start:
                wanted[p] = max(wanted[p], blocks[i])
