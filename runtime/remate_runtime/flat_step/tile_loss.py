"""`nll_loss_forward` tile by tile, with a bitwise equal result.

Each tile gathers the log probability of its rows. A single loss over all rows then adds them in the original order.
"""

from __future__ import annotations

from msgspec.structs import replace

from .graph import Op, Ref
from .tile_writer import ALL, TILE, TileWriter


class TiledLoss:
    """The loss of operation `i` of the graph over `rows` rows."""

    def __init__(self, out: TileWriter, i: int, rows: int) -> None:
        self.out, self.i, self.rows = out, i, rows
        self.op: Op = out.graph.operations[i]
        self.name = f"{self.op.id}{TILE}{ALL}"
        target, ignored = self.op.args[1].value, self.op.args[4]
        kind = replace(out.type(target), strides=None)
        self.mask = out.new(f"{self.name}.ignored", replace(kind, dtype="bool"))
        out.emit(i, f"{self.name}.ignored", "aten.eq.Scalar", (Ref(target), ignored), (self.mask,))
        self.index = out.new(f"{self.name}.index", kind)  # ignored targets need a valid class, too
        out.emit(i, f"{self.name}.index", "aten.masked_fill.Scalar", (Ref(target), Ref(self.mask), 0), (self.index,))
        self.whole = -1

    def tile(self, tile: int, scores: int, bounds: tuple[int, int]) -> None:
        """Gather the log probabilities of a tile."""
        out, i, name, count = self.out, self.i, f"{self.op.id}{TILE}{tile}", bounds[1] - bounds[0]
        kind = out.type(self.index)
        part = out.view(
            i, f"{name}.rows2", "aten.slice.Tensor", self.index, (0, *bounds), replace(kind, shape=(count,))
        )
        column = out.view(i, f"{name}.column", "aten.unsqueeze", part, (1,), replace(kind, shape=(count, 1)))
        kind = replace(out.type(scores), strides=None)
        taken = out.new(name, replace(kind, shape=(count, 1)))
        out.emit(i, name, "aten.gather", (Ref(scores), 1, Ref(column)), (taken,))
        if self.whole < 0:
            self.whole = out.empty(i, f"{self.name}.whole", replace(kind, shape=(self.rows, 1)))
        self.whole = out.filled(i, f"{name}.whole", self.whole, taken, 0, bounds)

    def end(self) -> None:
        """Compute the loss of all rows: class 0 if the target counts, else -1, which is ignored."""
        out, i = self.out, self.i
        number = out.cast(i, f"{self.name}.class", self.mask, "i64")
        target = out.new(f"{self.name}.target", out.type(number))
        out.emit(i, f"{self.name}.target", "aten.neg", (Ref(number),), (target,))
        args = (Ref(self.whole), Ref(target), None, self.op.args[3], -1)
        out.emit(i, f"{self.name}.loss", self.op.op, args, self.op.writes, like=self.op)
