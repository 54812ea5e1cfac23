"""`nll_loss_forward` and `nll_loss2d_forward` tile by tile, with a bitwise equal result.

Each tile gathers the log probability of its rows. A single loss over all rows then adds them in the original order.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..errors import ScheduleError
from .graph import Op, Ref
from .rows import NOT_SPLIT
from .tile_types import in_order, sliced, with_column
from .tile_writer import ALL, TILE, TileWriter

WEIGHTED = f"{TILE}{ALL}.weighted"  # ends the id of the product of log probabilities and weights of classes
_SUM = 2  # reduction
_IGNORED = -1


class TiledLoss:
    """The loss of operation `i` of the graph."""

    def __init__(self, out: TileWriter, i: int) -> None:
        self.out, self.i = out, i
        self.op: Op = out.graph.operations[i]
        self.name = f"{self.op.id}{TILE}{ALL}"
        target, ignored = self.op.args[1].value, self.op.args[4]
        kind = out.type(target)
        if len(kind.shape) > 1 and not in_order(kind):
            message = f"{self.op.id[:120]!r} cannot be split along rows: the axes of its target are in another order"
            raise ScheduleError(NOT_SPLIT, message, hint="leave it out")
        kind = replace(kind, strides=None)
        self.mask = out.new(f"{self.name}.ignored", replace(kind, dtype="bool"))
        out.emit(i, f"{self.name}.ignored", "aten.eq.Scalar", (Ref(target), ignored), (self.mask,))
        self.index = out.new(f"{self.name}.index", kind)  # ignored targets need a valid class, too
        out.emit(i, f"{self.name}.index", "aten.masked_fill.Scalar", (Ref(target), Ref(self.mask), 0), (self.index,))
        self.whole = -1

    def tile(self, tile: int, scores: int, axis: int, bounds: tuple[int, int]) -> None:
        """Gather the log probabilities of a tile. axis: of the scores, with rows. bounds: the tile along it."""
        out, i, name, own = self.out, self.i, f"{self.op.id}{TILE}{tile}", max(0, axis - 1)
        kind = sliced(out.type(self.index), own, bounds[1] - bounds[0])
        part = out.view(i, f"{name}.rows2", "aten.slice.Tensor", self.index, (own, *bounds), kind)
        column = out.view(i, f"{name}.column", "aten.unsqueeze", part, (1,), with_column(kind))
        kind, shape = replace(out.type(scores), strides=None), out.type(column).shape
        taken = out.new(name, replace(kind, shape=shape))
        out.emit(i, name, "aten.gather", (Ref(scores), 1, Ref(column)), (taken,))
        if self.whole < 0:
            shape = with_column(out.type(self.index)).shape
            self.whole = out.empty(i, f"{self.name}.whole", replace(kind, shape=shape))
        self.whole = out.filled(i, f"{name}.whole", self.whole, taken, axis, bounds)

    def end(self) -> None:
        """Compute the loss of all rows: class 0 if the target counts, else -1, which is ignored."""
        out, i = self.out, self.i
        number = out.cast(i, f"{self.name}.class", self.mask, "i64")
        target = out.new(f"{self.name}.target", out.type(number))
        out.emit(i, f"{self.name}.target", "aten.neg", (Ref(number),), (target,))
        if self.op.args[2] is None:
            self._loss("loss", self.whole, target, self.op.args[3], self.op.writes)
        else:
            self._weighted(self.op.args[2], target)

    def _loss(self, suffix: str, scores: int, target: int, reduction: int, writes: tuple[int | None, ...]) -> None:
        args = (Ref(scores), Ref(target), None, reduction, _IGNORED)
        self.out.emit(self.i, f"{self.name}.{suffix}", self.op.op, args, writes, like=self.op)

    def _weighted(self, weight: Ref, target: int) -> None:
        """Compute the sums of weighted log probabilities and of weights, both in the order of the operator."""
        out, i, (loss, total) = self.out, self.i, self.op.writes
        kind = replace(out.type(self.index), dtype=out.type(weight.value).dtype)
        weights = out.new(f"{self.name}.weights", kind)
        out.emit(i, f"{self.name}.weights", "aten.take", (weight, Ref(self.index)), (weights,))
        kind = with_column(kind)
        column = out.view(i, f"{self.name}.column", "aten.unsqueeze", weights, (1,), kind)
        weighted = out.new(f"{self.op.id}{WEIGHTED}", kind)
        out.emit(i, f"{self.op.id}{WEIGHTED}", "aten.mul.Tensor", (Ref(self.whole), Ref(column)), (weighted,))
        negative = out.new(f"{self.name}.negative", kind)
        out.emit(i, f"{self.name}.negative", "aten.neg", (Ref(column),), (negative,))
        mean, scalar = self.op.args[3] != _SUM, replace(kind, shape=())
        summed = out.new(f"{self.name}.summed:0", scalar) if mean else loss
        total = out.new(f"{self.name}.total:0", scalar) if total is None else total
        self._loss("total", negative, target, _SUM, (total, None))
        self._loss("summed", weighted, target, _SUM, (summed, None))
        if mean and summed is not None:
            out.emit(i, f"{self.name}.loss", "aten.div.Tensor", (Ref(summed), Ref(total)), (loss,))
