"""What a file states of a split step: its splits, and recomputations of what runs in a block with tiles.

Recomputations within other blocks stay in the plans of these blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from remate_runtime.flat_step import Expanded, FlatRecompute
from remate_runtime.format import Recompute


def divided(
    expanded: Expanded, recomputes: Sequence[FlatRecompute]
) -> tuple[tuple[FlatRecompute, ...], tuple[Recompute, ...]]:
    """Divide recomputations of a split step.

    Args:
        expanded: The step.
        recomputes: Recomputations of `expanded.graph`, in execution order.

    Returns:
        Those of points that concern no block with tiles, as recomputations of `expanded.unsplit`, and statements of the
        top level for the others.
    """
    operations = expanded.graph.operations
    tiled = tiled_operations(expanded)
    original = {op.id: at for at, op in enumerate(expanded.unsplit.operations)}
    plain: list[FlatRecompute] = []
    stated: list[Recompute] = []
    for before, group in groupby(recomputes, key=lambda recompute: recompute.before):
        again = [recompute.op for recompute in group]
        if tiled.isdisjoint((*again, before)):
            point = original[operations[before].id]
            plain += (FlatRecompute(original[operations[op].id], point) for op in again)
        else:
            stated.append(Recompute(tuple(operations[op].id for op in again), operations[before].id))
    return tuple(plain), tuple(stated)


def tiled_operations(expanded: Expanded) -> frozenset[int]:
    """Return the operations of all blocks with a split, by their indices in the split step."""
    split = {name for split in expanded.splits for name in split.operations}
    leaves = {place.id: at for at, place in enumerate(expanded.places) if place.leaf}
    homes = {next(leaves[home] for home in around(name) if home in leaves) for name in split}
    return frozenset(i for at in homes for i in (*expanded.places[at].forward, *expanded.places[at].backward))


def around(name: str) -> Iterator[str]:
    """Yield the ids that may contain an operation, the longest first."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
