"""Splits, for the second simulator: from `schema/README.md` and `schema/rows-1.json` alone, nothing of remate
imported."""

from __future__ import annotations

import re
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from .independent_masks import draw_masks
from .independent_rows import ROWS, listed, rows_of

if TYPE_CHECKING:
    from .independent_step import Json, Op, Step, Tensor

LOW = ("bf16", "f16")


class Window:
    """One split of a step: the operations that replace the named ones."""

    def __init__(self, step: Step, named: list[int], into: int, costs: tuple[Json, Json], home: str) -> None:
        named = draw_masks(step, named, costs, home)
        self.step, self.named, self.into, self.home = step, named, into, home
        self.costs, self.workspaces = costs
        self.maker = {w: i for i, op in enumerate(step.ops) for w in op.writes}
        rows = rows_of(step, named)
        self.view, self.made, self.axes, self.sums, self.lasts = rows.view, rows.made, rows.axes, rows.sums, rows.last
        self.by_rows, self.rows, self.tiled = rows.by_rows, rows.rows, rows.tiled
        self.tiles: dict[tuple[str, int], str] = {}
        self.ops: list[Op] = []
        self.total: dict[str, str] = {}
        self.whole: dict[str, str] = {}
        self.wanted = self.read_whole()

    def read_whole(self) -> set[str]:
        wanted = {*self.step.outputs, *self.step.gradients.values(), *self.step.updates.values()}
        for i in range(len(self.step.ops))[::-1]:
            op = self.step.ops[i]
            if op.view:
                wanted |= set(op.reads) if wanted & set(op.writes) else set()
            elif i in self.by_rows:
                wanted |= {v for v in op.reads if v not in self.by_rows[i] or not self.tiled(v)}
            else:
                wanted |= set(op.reads)
        return wanted

    # Order

    def apply(self) -> None:
        step, cut = self.step, self.step.backward_start
        halves = [self.half(0, cut), self.half(cut, len(step.ops))]
        new: dict[int, int] = {}  # how many operations there are before the one that had this number
        for start, half in zip((0, cut), halves, strict=True):
            if start:
                new[cut] = len(self.ops)
                step.backward_start = len(self.ops)
            for entry in half:
                if isinstance(entry, list):
                    self.window(entry, start > 0)
                elif not self.superfluous(step.ops[entry]):
                    self.ops.append(step.ops[entry])
        self.spans()
        step.ops = self.ops
        step.index = {op.id: i for i, op in enumerate(self.ops)}

    def spans(self) -> None:
        """Ranges of instances, by the ids of their operations."""
        ends = list(accumulate(1 for _ in self.ops))
        assert ends[-1] == len(self.ops)
        for full, (forward, backward) in self.step.spans.items():
            inside = {self.step.ops[i].id for span in (forward, backward) for i in span}
            at = [i for i, op in enumerate(self.ops) if op.id.partition("@")[0] in inside]
            halves = [[i for i in at if (i >= self.step.backward_start) == side] for side in (False, True)]
            self.step.spans[full] = tuple(range(h[0], h[-1] + 1) if h else range(0) for h in halves)  # type: ignore

    def half(self, start: int, stop: int) -> list[Any]:
        inside = [i for i in self.named if start <= i < stop]
        if not inside:
            return list(range(start, stop))
        written, before, behind = {w for i in inside for w in self.step.ops[i].writes}, [], []
        for i in range(inside[0], inside[-1] + 1):
            if i not in inside:
                op = self.step.ops[i]
                (behind if written & set(op.reads) else before).append(i)
                written |= set(op.writes) if written & set(op.reads) else set()
        return [*range(start, inside[0]), *before, inside, *behind, *range(inside[-1] + 1, stop)]

    def superfluous(self, op: Op) -> bool:
        base = op.reads[0] if op.view else ""
        while base in self.view:
            base = self.view[base].reads[0]
        return op.view and not self.wanted & set(op.writes) and base in self.made and base not in self.sums | self.lasts

    # Tiles

    def window(self, inside: list[int], backward: bool) -> None:
        for i in inside:
            if self.is_loss(i):
                self.before_loss(i)
        for tile in range(self.into)[:: -1 if backward else 1]:
            for i in inside:
                (self.tile_of_loss if self.is_loss(i) else self.tile)(i, tile)
        for i in inside:
            op = self.step.ops[i]
            if self.is_loss(i):
                self.after_loss(i)
                continue
            for value in op.writes:
                end = f".{value[len(op.id) + 1 :]}" if isinstance(op.line["out"], list) else ""
                if value in self.lasts:
                    self.becomes(self.tiles[value, -1], value)
                elif value in self.sums:
                    self.last(i, f"all.sum{end}", self.total[value], value)
                elif value in self.wanted:
                    self.last(i, f"all.shape{end}", self.whole[value], value)

    def last(self, i: int, suffix: str, source: str, value: str) -> None:
        if suffix.startswith("all.sum") and self.step.types[value].dtype in LOW:
            self.emit(i, suffix, "aten._to_copy", [source], value)
        elif suffix.startswith("all.shape") and self.axes[value][1] - self.axes[value][0] > 1:
            self.emit(i, suffix, "aten.view", [source], value)
        else:
            self.becomes(source, value)

    def becomes(self, source: str, value: str) -> None:
        at = next(k for k, op in enumerate(self.ops) if source in op.writes)
        self.ops[at] = self.ops[at]._replace(writes=[value if w == source else w for w in self.ops[at].writes])

    def is_loss(self, i: int) -> bool:
        op = self.step.ops[i]
        return ROWS["operators"][op.line["op"]]["rule"] == "loss" and op.args[3] != 0

    def ends(self, tile: int, of: tuple[int, ...]) -> tuple[int, int]:
        """Of a tile along flattened row axes of these sizes."""
        grain = prod(of) // self.rows
        return tile * self.rows // self.into * grain, (tile + 1) * self.rows // self.into * grain

    def tile_type(self, value: str, tile: int) -> Tensor:
        about, (a, b) = self.step.types[value], self.axes[value]
        start, stop = self.ends(tile, about.shape[a:b])
        shape = (*about.shape[:a], *(1,) * (b - a - 1), stop - start, *about.shape[b:])
        strides = None
        if about.strides is not None:
            order = sorted(range(len(shape)), key=lambda d: -about.strides[d])  # type: ignore[index]
            strides = tuple(prod(shape[e] for e in order[order.index(d) + 1 :]) for d in range(len(shape)))
        return about._replace(shape=shape, strides=strides)

    def tile(self, i: int, tile: int) -> None:
        from .independent_step import Name

        op, read = self.step.ops[i], self.by_rows[i]
        count, args = 0, []
        for argument in (one for given in op.args for one in listed(given)):
            if isinstance(argument, Name) and argument in read:
                count += 1
                args.append(Name(self.part(i, str(argument), tile, count)))
            else:
                args.append(argument)
        several = isinstance(op.line["out"], list)
        name, operator = f"{op.id}@{tile}", op.line["op"]
        writes = []
        for value in op.writes:
            written = name + (value[len(op.id) :] if several else "")
            whole = value in self.sums | self.lasts
            self.step.types[written] = self.step.types[value] if whole else self.tile_type(value, tile)
            writes.append(written)
        first = op.writes[0]
        if operator == "aten.mm" and first in self.total and self.step.types[first].dtype not in LOW:
            self.emit(i, str(tile), "aten.addmm", [self.total[first], *args], writes[0])
            self.total[first] = writes[0]
            return
        self.put(i, str(tile), {**op.line, "op": operator}, args, writes)
        ends = [f".{value[len(op.id) + 1 :]}" if several else "" for value in op.writes]
        for value, written, end in zip(op.writes, writes, ends, strict=True):
            if value in self.sums:
                self.add(i, f"{tile}.sum{end}", value, written)
            else:
                self.tiles[value, -1 if value in self.lasts else tile] = written
        for value, end in zip(op.writes, ends, strict=True):
            if value in self.wanted and value not in self.sums | self.lasts:
                self.fill(i, value, tile, end)

    def add(self, i: int, suffix: str, value: str, addend: str) -> None:
        if self.step.types[value].dtype in LOW:
            single = self.typed(i, f"{suffix}.f32", self.step.types[value]._replace(dtype="f32"))
            self.emit(i, f"{suffix}.f32", "aten._to_copy", [addend], single)
            addend = single
        if value in self.total:
            total = self.typed(i, suffix, self.step.types[addend])
            self.emit(i, suffix, "aten.add.Tensor", [self.total[value], addend], total)
            addend = total
        self.total[value] = addend

    def fill(self, i: int, value: str, tile: int, end: str) -> None:
        about, (a, b) = self.step.types[value], self.axes[value]
        start, stop = self.ends(tile, about.shape[a:b])
        flat = (*about.shape[:a], prod(about.shape[a:b]), *about.shape[b:])
        if value not in self.whole:
            self.whole[value] = self.typed(i, f"all.whole{end}", about._replace(shape=flat))
            self.emit(i, f"all.whole{end}", "aten.empty.memory_format", [], self.whole[value])
        part = self.tiles[value, tile]
        if b - a > 1:
            shape = (*flat[:a], stop - start, *flat[a + 1 :])
            under = self.typed(i, f"{tile}.whole{end}.flat", about._replace(shape=shape))
            self.emit(i, f"{tile}.whole{end}.flat", "aten.view", [part], under)
            part = under
        filled = self.typed(i, f"{tile}.whole{end}", about._replace(shape=flat))
        self.emit(i, f"{tile}.whole{end}", "aten.slice_scatter", [self.whole[value], part], filled)
        self.whole[value] = filled

    def part(self, i: int, value: str, tile: int, number: int) -> str:
        if self.tiled(value):
            return self.view_of(value, tile)
        about, (a, b) = self.step.types[value], self.axes[value]
        start, stop = self.ends(tile, about.shape[a:b])
        suffix, source = f"{tile}.rows{number}", value
        if b - a > 1:
            about = regrouped(about, a, b, (prod(about.shape[a:b]),))
            source = self.typed(i, f"{suffix}.flat", about)
            self.emit(i, f"{suffix}.flat", "aten.view", [value], source)
        shape = (*about.shape[:a], stop - start, *about.shape[a + 1 :])
        piece = self.typed(i, suffix, about._replace(shape=shape, strides=shown(shape, strides_of(about))))
        self.emit(i, suffix, "aten.slice.Tensor", [source], piece)
        if b - a > 1:
            source = piece
            sizes = (*(1,) * (b - a - 1), stop - start)
            piece = self.typed(i, f"{suffix}.shape", regrouped(self.step.types[piece], a, a + 1, sizes))
            self.emit(i, f"{suffix}.shape", "aten.view", [source], piece)
        return piece

    def view_of(self, value: str, tile: int) -> str:
        if (value, tile) not in self.tiles:
            op = self.view[value]
            under, kind = self.view_of(op.reads[0], tile), ROWS["views"][op.line["op"]]
            base, about = self.step.types[under], self.tile_type(value, tile)
            if kind == "transpose":
                strides = list(strides_of(base))
                first, other = [int(d) % len(strides) for d in op.args[1:3]] or [0, 1]
                strides[first], strides[other] = strides[other], strides[first]
                about = about._replace(strides=shown(about.shape, tuple(strides)))
            elif kind == "permute":
                strides = tuple(strides_of(base)[int(d) % len(base.shape)] for d in op.args[1])
                about = about._replace(strides=shown(about.shape, strides))
            elif kind == "expand":
                shift = len(about.shape) - len(base.shape)
                sizes, own = (1,) * shift + base.shape, (0,) * shift + strides_of(base)
                own = tuple(0 if x != y else s for x, y, s in zip(sizes, about.shape, own, strict=True))
                about = about._replace(strides=shown(about.shape, own))
            elif kind == "same":
                about = base
            elif kind == "slice":
                at, step = [*op.args[1:2], 0][0], [*op.args[4:5], 1][0]
                strides = tuple(s * step if d == at % len(about.shape) else s for d, s in enumerate(strides_of(base)))
                about = about._replace(strides=shown(about.shape, strides))
            elif kind in ("reshape", "squeeze"):
                about = about._replace(strides=shown(about.shape, seen_as(base, about.shape)))
            i = self.maker[value]
            self.tiles[value, tile] = view = self.typed(i, str(tile), about)
            self.emit(i, str(tile), op.line["op"], [under], view)
        return self.tiles[value, tile]

    # The loss

    def before_loss(self, i: int) -> None:
        target = str(self.step.ops[i].args[1])
        about = self.step.types[target]._replace(strides=None)
        mask = self.typed(i, "all.ignored", about._replace(dtype="bool"))
        self.emit(i, "all.ignored", "aten.eq.Scalar", [target], mask)
        self.emit(i, "all.index", "aten.masked_fill.Scalar", [target, mask], self.typed(i, "all.index", about))

    def tile_of_loss(self, i: int, tile: int) -> None:
        op = self.step.ops[i]
        scores, axis = self.part(i, str(op.args[0]), tile, 1), self.axes[str(op.args[0])][0]
        whole = self.step.types[f"{op.id}@all.index"]
        own = max(0, axis - 1)
        start, stop = self.ends(tile, whole.shape[own : own + 1])
        shape = (*whole.shape[:own], stop - start, *whole.shape[own + 1 :])
        about = whole._replace(shape=shape, strides=shown(shape, strides_of(whole)))
        part = self.typed(i, f"{tile}.rows2", about)
        self.emit(i, f"{tile}.rows2", "aten.slice.Tensor", [f"{op.id}@all.index"], part)
        column = self.typed(i, f"{tile}.column", with_column(about))
        self.emit(i, f"{tile}.column", "aten.unsqueeze", [part], column)
        about = self.step.types[scores]._replace(strides=None)
        taken = self.typed(i, str(tile), about._replace(shape=(shape[0], 1, *shape[1:])))
        self.emit(i, str(tile), "aten.gather", [scores, column], taken)
        if op.id not in self.whole:
            self.whole[op.id] = self.typed(i, "all.whole", about._replace(shape=with_column(whole).shape))
            self.emit(i, "all.whole", "aten.empty.memory_format", [], self.whole[op.id])
        filled = self.typed(i, f"{tile}.whole", about._replace(shape=with_column(whole).shape))
        self.emit(i, f"{tile}.whole", "aten.slice_scatter", [self.whole[op.id], taken], filled)
        self.whole[op.id] = filled

    def after_loss(self, i: int) -> None:
        op = self.step.ops[i]
        about = self.step.types[f"{op.id}@all.ignored"]._replace(dtype="i64")
        number, target = self.typed(i, "all.class", about), self.typed(i, "all.target", about)
        self.emit(i, "all.class", "aten._to_copy", [f"{op.id}@all.ignored"], number)
        self.emit(i, "all.target", "aten.neg", [number], target)
        if op.args[2] is None:
            self.put(i, "all.loss", op.line, named([self.whole[op.id], target]), list(op.writes))
        else:
            self.weighted_loss(i, str(op.args[2]), target)

    def weighted_loss(self, i: int, weight: str, target: str) -> None:
        op = self.step.ops[i]
        about = self.step.types[f"{op.id}@all.index"]._replace(dtype=self.step.types[weight].dtype)
        column = about._replace(shape=(about.shape[0], 1, *about.shape[1:]))
        self.emit(i, "all.weights", "aten.take", [weight, f"{op.id}@all.index"], self.typed(i, "all.weights", about))
        self.emit(i, "all.column", "aten.unsqueeze", [f"{op.id}@all.weights"], self.typed(i, "all.column", column))
        weights = f"{op.id}@all.column"
        both = [self.whole[op.id], weights]
        self.emit(i, "all.weighted", "aten.mul.Tensor", both, self.typed(i, "all.weighted", column))
        self.emit(i, "all.negative", "aten.neg", [weights], self.typed(i, "all.negative", column))
        loss, total = op.writes
        mean = op.args[3] == 1
        summed = self.typed(i, "all.summed:0", column._replace(shape=())) if mean else loss
        for suffix, scores, result in (("total", "negative", total), ("summed", "weighted", summed)):
            self.put(i, f"all.{suffix}", op.line, named([f"{op.id}@all.{scores}", target]), [result])
        if mean:
            self.emit(i, "all.loss", "aten.div.Tensor", [summed, total], loss)

    # Operations

    def typed(self, i: int, suffix: str, about: Tensor) -> str:
        name = f"{self.step.ops[i].id}@{suffix}"
        self.step.types[name] = about
        return name

    def emit(self, i: int, suffix: str, operator: str, reads: list[Any], result: str) -> None:
        line = {"op": operator, "out": ""}
        if operator == "aten.unsqueeze" or (suffix.isdigit() and operator == self.step.ops[i].line["op"]):
            line["kwargs"] = self.step.ops[i].line.get("kwargs", {})
        self.put(i, suffix, line, named(reads), [result])

    def put(self, i: int, suffix: str, line: Json, args: list[Any], writes: list[str]) -> None:
        from .independent_step import Name, Op

        about, reads = self.step.ops[i], dict.fromkeys(str(a) for a in args if isinstance(a, Name))
        local = re.sub(r"^\d+", str(self.into), suffix)
        key = f"{about.id.removeprefix(self.home + '.')}@{local}"
        took = self.costs.get(key, -(-about.ns // self.into) if suffix.isdigit() else 0)
        line = {**line, "id": f"{about.id}@{suffix}"}
        own = self.step.ops[i].line.get("workspace", 0) if suffix.isdigit() else 0
        line["workspace"] = self.workspaces.get(key, own)
        operation = Op(line["id"], line, args, list(reads), writes, took)
        self.ops.append(operation._replace(ns=0) if operation.view else operation)


def named(values: list[Any]) -> list[Any]:
    from .independent_step import Name

    return [Name(value) if isinstance(value, str) else value for value in values]


def regrouped(about: Tensor, a: int, b: int, sizes: tuple[int, ...]) -> Tensor:
    """Other axes in place of a to b."""
    shape = (*about.shape[:a], *sizes, *about.shape[b:])
    return about._replace(shape=shape, strides=shown(shape, seen_as(about, shape)))


def seen_as(about: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a view: where the second element along each axis is."""
    steps = []
    for d in range(len(shape)):
        at, offset = prod(shape[d + 1 :]), 0
        for size, stride in zip(about.shape[::-1], strides_of(about)[::-1], strict=True):
            offset, at = offset + at % size * stride, at // size
        steps.append(offset)
    return tuple(steps)


def with_column(about: Tensor) -> Tensor:
    strides = strides_of(about)
    new = (strides[0], about.shape[1] * strides[1] if len(strides) > 1 else 1, *strides[1:])
    shape = (about.shape[0], 1, *about.shape[1:])
    return about._replace(shape=shape, strides=shown(shape, new))


def strides_of(about: Tensor) -> tuple[int, ...]:
    return about.strides or tuple(prod(about.shape[d + 1 :]) for d in range(len(about.shape)))


def shown(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    plain = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
    return None if all(n < 2 or a == b for n, a, b in zip(shape, strides, plain, strict=True)) else strides
