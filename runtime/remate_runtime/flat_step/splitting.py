"""The statement `split`: rewrites a step so that operations run tile by tile along rows.

The result contains ordinary operations only. The forward operations of a split form a window, and so do its backward
operations. A window runs the first tile of all its operations, then the second tile, and so on. Backward begins with
the last tile. Only the intermediate values of one tile exist at once. `schema/README.md` specifies the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..errors import ScheduleError
from ..operators.rows import ROWS
from .graph import Graph
from .rows import NOT_SPLIT, Rows, bounds, rows_of
from .split_order import around_window
from .tile_loss import TiledLoss
from .tile_masks import with_masks
from .tile_writer import Costs, TileWriter, unknown
from .tiles import Tiles

_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError)


class FlatSplit(msgspec.Struct, frozen=True):
    """A split of a step.

    Attributes:
        operations: Ascending indices in the step before the split.
        into: Number of tiles.
    """

    operations: tuple[int, ...]
    into: int


class SplitStep(msgspec.Struct, frozen=True):
    """A step with tiles.

    Attributes:
        graph: The step.
        origins: For each operation, the index of its original in the step before the split.
        summed: Names of values that are sums over tiles.
        rows: Number of rows.
    """

    graph: Graph
    origins: tuple[int, ...]
    summed: frozenset[str]
    rows: int


def split_step(graph: Graph, split: FlatSplit, costs: Costs = unknown) -> SplitStep:
    """Rewrite a step so that operations run tile by tile.

    Args:
        graph: The step.
        split: The split.
        costs: Times and workspaces of the resulting operations, where they are known.

    Raises:
        ScheduleError: R091, an operation cannot be split; R092, fewer rows than tiles.
    """
    for i in split.operations:
        if graph.operations[i].view:
            message = f"{graph.operations[i].id[:120]!r} is a view, and views follow their base"
            raise ScheduleError(NOT_SPLIT, message, hint="leave it out")
    try:
        return _split_step(graph, split, costs)
    except _MALFORMED as error:  # a file may give operators any arguments; only the engine checks them
        names = ", ".join(graph.operations[i].id[:120] for i in split.operations[:3])
        message = f"operations of this split have arguments that their operators do not accept (the first are {names})"
        raise ScheduleError(NOT_SPLIT, message, hint="compare it with the operators of schema/rows-1.json") from error


def row_count(graph: Graph, operations: Sequence[int]) -> int:
    """Return the number of rows of operations that `split_step` accepts."""
    masked = with_masks(graph, sorted(operations))
    return rows_of(masked.graph, masked.members).count


def _split_step(graph: Graph, split: FlatSplit, costs: Costs) -> SplitStep:
    masked = with_masks(graph, split.operations, costs)
    rows = rows_of(masked.graph, masked.members)
    if not 2 <= split.into <= rows.count:
        message = f"{split.into} tiles of {rows.count} rows"
        raise ScheduleError("R092", message, hint=f"a number from 2 to {rows.count}" if rows.count > 1 else "delete it")
    own = FlatSplit(masked.members, split.into)
    step = _Splitting(masked.graph, own, rows, TileWriter(masked.graph, split.into, costs)).result()
    return replace(step, origins=tuple(masked.origins[i] for i in step.origins))


class _Splitting:
    def __init__(self, graph: Graph, split: FlatSplit, rows: Rows, out: TileWriter) -> None:
        self.graph, self.rows, self.out = graph, rows, out
        self.tiles = Tiles(out, rows, list(bounds(rows.count, split.into)))
        self.members = frozenset(split.operations)
        self.whole = self._needed_whole()

    def result(self) -> SplitStep:
        graph, out = self.graph, self.out
        starts = list[int]()
        for half in (range(graph.backward_start), range(graph.backward_start, len(graph.operations))):
            starts.append(len(out.operations))
            for i in around_window(graph, half, self.members):
                if isinstance(i, list):
                    self._window(i, backward=i[0] >= graph.backward_start)
                elif not self._obsolete(i):
                    out.append(graph.operations[i], i)
        losses = {v for i in self.members if self._is_loss(i) for v in graph.operations[i].writes}
        summed = frozenset(out.values[v].name for v in self.rows.sums - losses)
        return SplitStep(out.result(starts[1]), tuple(out.origins), summed, self.rows.count)

    def _needed_whole(self) -> set[int]:
        """Return the values that some operation or the caller reads as a whole."""
        graph, wanted = self.graph, set(self.graph.outputs)
        wanted.update(v for _, v in (*graph.gradients, *graph.updates))
        for i in range(len(graph.operations) - 1, -1, -1):
            op = graph.operations[i]
            if op.view:
                if not wanted.isdisjoint(op.writes):
                    wanted.update(op.reads)
            elif i in self.members:
                wanted.update(v for v in op.reads if v not in self.rows.read[i] or not self.rows.split(v))
            else:
                wanted.update(op.reads)
        return wanted

    def _obsolete(self, i: int) -> bool:
        """Return whether a view of a tiled value is never read as a whole."""
        op = self.graph.operations[i]
        if not op.view or not self.whole.isdisjoint(op.writes):
            return False
        owner = self.graph.root[op.reads[0]]
        whole = owner in self.rows.sums or owner in self.rows.last
        return self.graph.values[owner].producer in self.members and not whole

    def _is_loss(self, i: int) -> bool:
        """Return whether an operation is a loss of all rows."""
        op = self.graph.operations[i]
        return ROWS.operators[op.op].rule == "loss" and bool(op.args[3])

    def _window(self, members: Sequence[int], backward: bool) -> None:
        """Write a window: all tiles, then the results that need all of them."""
        results = {i: [(k, v) for k, v in enumerate(self.graph.operations[i].writes) if v is not None] for i in members}
        tiles = self.tiles
        losses = {i: TiledLoss(self.out, i) for i in members if self._is_loss(i)}
        count = len(tiles.bounds)
        for tile in reversed(range(count)) if backward else range(count):
            for i in members:
                if i in losses:
                    scores = self.graph.operations[i].args[0].value
                    axes = self.rows.read[i][scores]
                    losses[i].tile(tile, tiles.read(i, scores, axes, tile, 1), axes[0], tiles.span(scores, axes, tile))
                    continue
                tiles.run(i, tile)
                for k, v in results[i]:
                    if self._leaves(v):
                        tiles.fill(i, k, v, tile)
        for i in members:
            if i in losses:
                losses[i].end()
                continue
            for k, v in results[i]:
                if v in self.rows.last:
                    tiles.end_last(v)
                elif v in self.rows.sums:
                    tiles.end_sum(i, k, v)
                elif self._leaves(v):
                    tiles.end_whole(i, k, v)

    def _leaves(self, value: int) -> bool:
        return value in self.whole and value not in self.rows.sums and value not in self.rows.last
