"""Which axes are rows, for the second simulator: from `schema/README.md` and `schema/rows-1.json` alone, nothing of
remate imported."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .independent_step import Op, Step

ROWS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "schema/rows-1.json").read_bytes())


class RowAxes:
    """For each value its row axes, the sums over rows, and the arguments that each named operation reads by rows."""

    def __init__(self, step: Step, named: list[int], seed: int) -> None:
        self.step = step
        self.view = {w: op for op in step.ops if op.view for w in op.writes}
        self.made = {w for i in named for w in step.ops[i].writes}
        self.axes: dict[str, tuple[int, int]] = {}
        self.sums: set[str] = set()
        self.last: set[str] = set()
        self.by_rows: dict[int, list[str]] = {}
        first = step.ops[seed].writes[0]
        self.rows, end = leading(self.shape(first))
        assert end
        self.axes[first] = 0, end
        while len(self.by_rows) < len(named):
            known = len(self.by_rows)
            for i in named:
                if i not in self.by_rows:
                    self.rule(i)
            assert len(self.by_rows) > known

    def shape(self, value: str) -> tuple[int, ...]:
        return self.step.types[value].shape

    def at(self, value: str) -> tuple[int, int] | None:
        if value not in self.axes and value in self.view:
            before = self.at(self.view[value].reads[0])
            if before is not None and (axes := self.through(self.view[value], value, before)) is not None:
                self.axes[value] = axes
        return self.axes.get(value)

    def through(self, op: Op, value: str, axes: tuple[int, int]) -> tuple[int, int] | None:
        kind, a, b = ROWS["views"].get(op.line["op"]), self.shape(op.reads[0]), self.shape(value)
        if kind == "reshape":
            return reshaped(a, b, axes, self.rows)
        if kind == "transpose":
            first, other = [int(d) % len(a) for d in op.args[1:3]] or [0, 1]
            at = {first: other, other: first}.get(axes[0], axes[0])
            return (at, at + 1) if axes[1] - axes[0] == 1 else None
        if kind == "permute":
            at = [int(d) % len(a) for d in op.args[1]].index(axes[0])
            return (at, at + 1) if axes[1] - axes[0] == 1 else None
        if kind == "squeeze":
            at = int(op.args[1]) % len(a)
            if a[at] > 1:
                return None if axes[0] <= at < axes[1] else axes
            return axes[0] - (at < axes[0]), axes[1] - (at < axes[1])
        if kind == "unsqueeze":
            at = int(op.args[1]) % len(b)
            return axes if at >= axes[1] else (axes[0] + 1, axes[1] + 1) if at <= axes[0] else None
        if kind == "expand":
            return axes[0] + len(b) - len(a), axes[1] + len(b) - len(a)
        if kind == "slice":
            at = int(op.args[1]) % len(a) if len(op.args) > 1 else 0
            return None if axes[0] <= at < axes[1] else axes
        return axes if kind == "same" else None

    def learn(self, value: str, axes: tuple[int, int]) -> None:
        if self.at(value) is not None:
            assert self.axes[value] == axes
            return
        self.axes[value] = axes
        if value in self.view:
            op = self.view[value]
            kind = ROWS["views"].get(op.line["op"])
            if kind == "reshape":
                back = reshaped(self.shape(value), self.shape(op.reads[0]), axes, self.rows)
            elif kind == "squeeze":
                sizes = self.shape(op.reads[0])
                at = int(op.args[1]) % len(sizes)
                more = sizes[at] == 1
                back = axes[0] + (more and at <= axes[0]), axes[1] + (more and at < axes[1])
            elif kind == "permute":
                at = int(op.args[1][axes[0]]) % len(op.args[1])
                back = (at, at + 1) if axes[1] - axes[0] == 1 else None
            else:
                back = self.through(op, value, axes) if kind in ("same", "slice", "transpose") else None
            if back is not None:
                self.learn(op.reads[0], back)
            else:
                assert not self.inside(value)

    def inside(self, value: str) -> bool:
        while value not in self.made and value in self.view:
            value = self.view[value].reads[0]
        return value in self.made

    def fits(self, value: str, axes: tuple[int, int]) -> None:
        count = prod(self.shape(value)[slice(*axes)])
        assert min(axes) >= 0
        assert count > 0
        assert count % self.rows == 0

    def rule(self, i: int) -> None:
        op = self.step.ops[i]
        about, out = ROWS["operators"][op.line["op"]], op.writes[0]
        read: dict[str, tuple[int, int]] = {}
        results: list[tuple[int, int] | None] = [None] * len(op.writes)
        kind = about["rule"]
        if kind == "elementwise":
            rank, axes = len(self.shape(out)), self.at(out)
            for value in op.reads:
                if axes is None and (known := self.at(value)) is not None:
                    shift = rank - len(self.shape(value))
                    axes = known[0] + shift, known[1] + shift
            if axes is None:
                return
            for value in op.reads:
                shift = rank - len(self.shape(value))
                span = max(0, axes[0] - shift), max(0, axes[1] - shift)
                if self.shape(value)[slice(*span)] == self.shape(out)[slice(*axes)]:
                    read[value] = span
                else:
                    assert prod(self.shape(value)[slice(*span)]) == 1
            results = [axes] * len(op.writes)
        elif kind == "along":
            cut = [str(name) for at in about["cut"] for name in listed(op.args[at])]
            axes = next((self.at(value) for value in cut if self.at(value) is not None), None)
            if axes is None and about["out"][0] == "rows":
                axes = self.at(out)
            if axes is None:
                return
            rank = len(self.shape(cut[0]))
            if "over" in about:
                at = int(op.args[about["over"]]) % rank if about["over"] < len(op.args) else 0
                assert not axes[0] <= at < axes[1]
            if "trailing" in about:
                assert axes[1] <= rank - len(op.args[about["trailing"]])
            elif "leading" in about:
                assert axes[1] <= about["leading"]
            assert len({self.shape(value)[slice(*axes)] for value in cut}) == 1
            read = dict.fromkeys(cut, axes)
            results = [axes if each == "rows" else None for each in about["out"]]
        elif kind == "product":
            left, right = (str(op.args[at]) for at in about["cut"])
            a, b = self.at(left), self.at(right)
            if a == (1, 2) or (a is None and b == (0, 1)):
                read = {left: (1, 2), right: (0, 1)}
            elif a == (0, 1) or self.at(out) == (0, 1):
                read, results = {left: (0, 1)}, [(0, 1)]
                if about["cut"] != [0, 1] and self.shape(str(op.args[0]))[:-1] not in ((), (1,)):
                    read[str(op.args[0])] = 0, 1
            else:
                return
        elif kind == "reduce":
            value = str(op.args[0])
            axes, rank = self.at(value), len(self.shape(value))
            given = op.args[1] if len(op.args) > 1 else None
            over = {int(d) % rank for d in ([given] if isinstance(given, int) else given or range(rank))}
            rest = [d for d in range(rank) if d not in over or (len(op.args) > 2 and op.args[2])]
            if axes is None:
                known = self.at(out)
                if known is None:
                    return
                axes = rest[known[0]], rest[known[1] - 1] + 1
            read = {value: axes}
            if over & set(range(*axes)):
                assert over >= set(range(*axes))
                assert op.line["op"] == "aten.sum.dim_IntList"
            else:
                results = [(rest.index(axes[0]), rest.index(axes[1] - 1) + 1)]
        elif kind == "sized":
            axes, sizes = self.at(out), self.shape(out)
            for value in op.reads:
                known = self.at(value)
                if axes is None and known is not None and self.shape(value)[: known[1]] == sizes[: known[1]]:
                    axes = known
            if axes is None:
                return
            read = {value: axes for value in op.reads if self.shape(value)[: axes[1]] == sizes[: axes[1]]}
            results = [axes]
        else:
            scores, target = (str(op.args[at]) for at in ((0, 1) if kind == "loss" else (1, 2)))
            assert not (kind == "loss" and op.args[3] and self.inside(target))
            axes = self.at(scores)
            if axes is None:
                return
            assert axes[1] - axes[0] == 1
            assert axes[0] != 1
            own = axes if axes[0] == 0 else (axes[0] - 1, axes[0])
            read = {scores: axes, target: own}
            if kind == "loss" and not op.args[3]:
                self.last |= set(op.writes[1:])
                results = [own, None]
            if kind == "loss_backward":
                results = [axes]
                if not op.args[4]:
                    read = {str(op.args[0]): own, **read}
        for value, axes in read.items():
            self.fits(value, axes)
            self.learn(value, axes)
        if isinstance(op.line["out"], list):  # results that nothing reads have no name
            results = [axes for axes, name in zip(results, op.line["out"], strict=True) if name is not None]
        for value, axes in zip(op.writes, results, strict=True):
            if axes is None:
                (self.last if value in self.last else self.sums).add(value)
                assert value in self.last or kind == "loss" or i >= self.step.backward_start
            else:
                self.fits(value, axes)
                self.learn(value, axes)
        makers = {w: j for j, other in enumerate(self.step.ops) for w in other.writes}
        for value in set(op.reads) - set(read):
            same_half = (i >= self.step.backward_start) == (makers.get(value, -1) >= self.step.backward_start)
            assert not (same_half and (value in self.sums | self.last or self.inside(value)))
        self.by_rows[i] = list(read)

    def tiled(self, value: str) -> bool:
        return self.inside(value) and self.at(value) is not None


def rows_of(step: Step, named: list[int]) -> RowAxes:
    """By the first named operation; otherwise by the next one of forward with a fraction of its rows."""
    fewest = 0
    for i in (named[0], *(i for i in named[1:] if i < step.backward_start)):
        count, _ = leading(step.types[step.ops[i].writes[0]].shape)
        if fewest and (not 1 < count < fewest or fewest % count):
            continue
        fewest = count
        try:
            return RowAxes(step, named, i)
        except AssertionError:
            continue
    raise AssertionError("no rows")


def leading(sizes: tuple[int, ...]) -> tuple[int, int]:
    end = next((k + 1 for k, size in enumerate(sizes) if size > 1), 0)
    return prod(sizes[:end]), end


def listed(argument: Any) -> list[Any]:
    return argument if isinstance(argument, list) else [argument]


def reshaped(a: tuple[int, ...], b: tuple[int, ...], axes: tuple[int, int], rows: int) -> tuple[int, int] | None:
    ahead = prod(a[: axes[0]])
    for start in range(len(b)):
        if prod(b[:start]) == ahead and b[start] > 1:
            return next(((start, end) for end in range(start + 1, len(b) + 1) if prod(b[start:end]) % rows == 0), None)
    return None
