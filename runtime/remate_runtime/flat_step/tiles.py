"""The reads and results of the tiles of a split."""

from __future__ import annotations

from math import prod
from typing import Any

from msgspec.structs import replace

from ..errors import ScheduleError
from ..format.tensor_type import TensorType
from ..operators.rows import ROWS
from .graph import Argument, Ref
from .rows import NOT_SPLIT, Axes, Rows
from .tile_types import as_view, dense, reshaped, sliced
from .tile_writer import ALL, TILE, TileWriter

_LOW = ("bf16", "f16")  # sums over tiles are accumulated in f32


class Tiles:
    """Writes the tiles of a window.

    Attributes:
        out: The step that is being written.
        rows: The rows of all values.
        bounds: For each tile, its first row and the row after its last.
    """

    def __init__(self, out: TileWriter, rows: Rows, bounds: list[tuple[int, int]]) -> None:
        self.out, self.rows, self.bounds = out, rows, bounds
        self._made: dict[tuple[int, int], int] = {}  # by value and tile
        self._sums: dict[int, int] = {}  # by value: the sum over the tiles so far
        self._last: dict[int, int] = {}  # by value: the result of the tile before
        self._filled: dict[int, int] = {}  # by value: the whole as filled so far

    def span(self, value: int, axes: Axes, tile: int) -> tuple[int, int]:
        """Return where a tile of a value begins and ends along its flattened row axes."""
        grain = self.rows.grain(value, axes)
        return self.bounds[tile][0] * grain, self.bounds[tile][1] * grain

    def run(self, i: int, tile: int) -> None:
        """Write a tile of operation i."""
        op, rows, out = self.out.graph.operations[i], self.rows, self.out
        args, name = self._arguments(i, tile), f"{op.id}{TILE}{tile}"
        writes: list[int | None] = []
        for k, v in enumerate(op.writes):
            whole = v in rows.sums or v in rows.last
            kind = None if v is None else out.type(v) if whole else self._type(v, tile)
            result = None if kind is None else out.new(f"{name}:{k}" if op.multiple else name, kind)
            writes.append(result)
            if v is not None and result is not None and not whole:
                self._made[v, tile] = result
            elif v is not None and result is not None and v in rows.last:
                self._last[v] = result
        total, result = op.writes[0], writes[0]
        if op.op == "aten.mm" and total in self._sums and result is not None and out.type(result).dtype not in _LOW:
            out.emit(i, name, "aten.addmm", (Ref(self._sums[total]), *args), (result,))
            self._sums[total] = result
            return
        out.emit(i, name, op.op, args, tuple(writes), like=op)
        for k, (v, result) in enumerate(zip(op.writes, writes, strict=True)):
            if v is not None and result is not None and v in rows.sums:
                self._add(i, f"{name}.sum{self._suffix(i, k)}", v, result)

    def _suffix(self, i: int, k: int) -> str:
        return f".{k}" if self.out.graph.operations[i].multiple else ""

    def _arguments(self, i: int, tile: int) -> tuple[Any, ...]:
        read, count = self.rows.read[i], 0

        def taken(argument: Argument) -> Any:
            nonlocal count
            if isinstance(argument, tuple):
                return tuple(map(taken, argument))
            if not isinstance(argument, Ref) or argument.value not in read:
                return argument
            count += 1
            return Ref(self.read(i, argument.value, read[argument.value], tile, count))

        op = self.out.graph.operations[i]
        args, rule = list(op.args), ROWS.operators[op.op]
        if rule.size is not None and op.writes[0] is not None:
            args[rule.size] = self._type(op.writes[0], tile).shape
        if rule.count is not None:
            args[rule.count] = self._type(op.reads[0], tile).shape[0]
        return tuple(map(taken, args))

    # Reading

    def read(self, i: int, value: int, axes: Axes, tile: int, number: int) -> int:
        """Return the rows of a tile of a value that operation i reads. number: of the argument, from 1."""
        if self.rows.split(value):
            return self._of(value, tile)
        out, (start, end) = self.out, self.span(value, axes, tile)
        name, flat, several = f"{out.graph.operations[i].id}{TILE}{tile}.rows{number}", value, axes[1] - axes[0] > 1
        if several:
            flat = self._regrouped(i, f"{name}.flat", value, axes, (self._length(value, axes),))
        part = out.view(
            i, name, "aten.slice.Tensor", flat, (axes[0], start, end), sliced(out.type(flat), axes[0], end - start)
        )
        if not several:
            return part
        sizes = (*(1,) * (axes[1] - axes[0] - 1), end - start)
        return self._regrouped(i, f"{name}.shape", part, (axes[0], axes[0] + 1), sizes)

    def _length(self, value: int, axes: Axes) -> int:
        """Return the length of a single axis in place of the row axes."""
        return prod(self.out.type(value).shape[slice(*axes)])

    def _regrouped(self, i: int, name: str, value: int, axes: Axes, sizes: tuple[int, ...]) -> int:
        """Append a view with other axes in place of the row axes."""
        before = self.out.type(value)
        kind = reshaped(before, (*before.shape[: axes[0]], *sizes, *before.shape[axes[1] :]))
        if kind is None:
            message = f"{self.out.values[value].name[:120]!r} is not contiguous, and its rows span several axes"
            raise ScheduleError(NOT_SPLIT, message, hint=f"leave {self.out.graph.operations[i].id[:120]} out")
        return self.out.view(i, name, "aten.view", value, (kind.shape,), kind)

    def _of(self, value: int, tile: int) -> int:
        """Return a tile of a value that the split produces, or the same view of a tile of its base."""
        if (value, tile) not in self._made:
            i = self.out.graph.values[value].producer
            op = self.out.graph.operations[i]
            under, kind = self._of(op.reads[0], tile), self._type(value, tile)
            arguments = op.args[1:]
            if ROWS.views[op.op] in ("reshape", "expand"):
                arguments = (kind.shape, *op.args[2:])
            kind = as_view(op, self.out.type(under), kind)
            self._made[value, tile] = self.out.view(i, f"{op.id}{TILE}{tile}", op.op, under, arguments, kind)
        return self._made[value, tile]

    def _type(self, value: int, tile: int) -> TensorType:
        """Return the type of a tile of a value."""
        kind, (first, stop) = self.out.graph.values[value].type, self.rows.axes[value]
        start, end = self.span(value, (first, stop), tile)
        shape = (*kind.shape[:first], *(1,) * (stop - first - 1), end - start, *kind.shape[stop:])
        return replace(kind, shape=shape, strides=None if kind.strides is None else dense(kind, shape))

    # Sums over all rows

    def _add(self, i: int, name: str, value: int, part: int) -> None:
        """Add the sum over a tile to the sum over the tiles before."""
        out = self.out
        if out.type(value).dtype in _LOW:
            part = out.cast(i, f"{name}.f32", part, "f32")
        if value in self._sums:
            total = out.new(name, out.type(part))
            out.emit(i, name, "aten.add.Tensor", (Ref(self._sums[value]), Ref(part)), (total,))
            part = total
        self._sums[value] = part

    def end_sum(self, i: int, k: int, value: int) -> None:
        """Let the value be the sum over all tiles."""
        kind, total = self.out.type(value), self._sums[value]
        if kind.dtype in _LOW:
            name = f"{self.out.graph.operations[i].id}{TILE}{ALL}.sum{self._suffix(i, k)}"
            self.out.cast(i, name, total, kind.dtype, value)
        else:
            self.out.becomes(total, value)

    def end_last(self, value: int) -> None:
        """Let the value be the result of the last tile."""
        self.out.becomes(self._last[value], value)

    # Values that are read as a whole

    def fill(self, i: int, k: int, value: int, tile: int) -> None:
        """Write a tile into the whole."""
        op, out = self.out.graph.operations[i], self.out
        axes, suffix = self.rows.axes[value], self._suffix(i, k)
        if value not in self._filled:
            kind = out.type(value)
            if kind.strides is not None:
                message = (
                    f"{op.id[:120]!r} returns {kind}, which is not contiguous, and other operations read all of it"
                )
                raise ScheduleError(NOT_SPLIT, message, hint="leave it out")
            whole = replace(kind, shape=(*kind.shape[: axes[0]], self._length(value, axes), *kind.shape[axes[1] :]))
            self._filled[value] = out.empty(i, f"{op.id}{TILE}{ALL}.whole{suffix}", whole)
        name, part, whole = f"{op.id}{TILE}{tile}.whole{suffix}", self._made[value, tile], self._filled[value]
        start, end = self.span(value, axes, tile)
        if axes[1] - axes[0] > 1:
            part = self._regrouped(i, f"{name}.flat", part, axes, (end - start,))
        self._filled[value] = out.filled(i, name, whole, part, axes[0], (start, end))

    def end_whole(self, i: int, k: int, value: int) -> None:
        """Let the value be the whole that the last tile has completed."""
        first, stop = self.rows.axes[value]
        if stop - first > 1:
            name = f"{self.out.graph.operations[i].id}{TILE}{ALL}.shape{self._suffix(i, k)}"
            self.out.emit(i, name, "aten.view", (Ref(self._filled[value]), self.out.type(value).shape), (value,))
        else:
            self.out.becomes(self._filled[value], value)
