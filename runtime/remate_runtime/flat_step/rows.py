"""Which axes of the values of a split are its rows.

The rules of operators and views are applied until nothing new follows. A window has a number of rows. The rows of a
value are adjacent axes whose sizes multiply to that number, or to a multiple of it where a row spans several elements:
if a window is split along the batch, a row of `[batch * length, words]` is all of a sequence. `Axes` is the first of
these axes and the index after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal

from ..errors import ScheduleError
from ..operators.rows import ROWS, RowRule
from .graph import Graph, Op
from .renumbering import values_in
from .tile_masks import why_not_drawn

Axes = tuple[int, int]
LAST = "last"
NOT_SPLIT = "R091"


class Rows:
    """The rows of the values of a split.

    Attributes:
        axes: The axes of each value with rows.
        sums: Values that are sums over all rows.
        last: Values that no tile computes differently, taken from the last one that runs.
        read: By operation, the values that it reads row by row, with their axes.
        count: Number of rows.
    """

    def __init__(self, graph: Graph, operations: Sequence[int], seed: int) -> None:
        self.graph = graph
        self.axes: dict[int, Axes] = {}
        self.sums: set[int] = set()
        self.last: set[int] = set()
        self.read: dict[int, dict[int, Axes]] = {}
        self._made = frozenset(v for i in operations for v in graph.operations[i].writes if v is not None)
        self._seed(graph.operations[seed])
        left = list(operations)
        while left:
            rest = [i for i in left if not self._apply(i)]
            if len(rest) == len(left):
                raise _refused(
                    graph.operations[rest[0]],
                    "it reads no rows of the other operations",
                    "leave it out, or name the operations that it reads from",
                )
            left = rest

    def _seed(self, op: Op) -> None:
        """Take the first axes of the first result as rows, up to the first axis with several elements."""
        value = next(v for v in op.writes if v is not None)
        self.count, end = _leading(self.shape(value))
        if end == 0:
            raise _refused(op, "its result has no rows", "name an operation with rows first")
        self.axes[value] = (0, end)

    def shape(self, value: int) -> tuple[int, ...]:
        return self.graph.values[value].type.shape

    def grain(self, value: int, axes: Axes) -> int:
        """Return how many elements along its axes a row of a value spans."""
        return prod(self.shape(value)[slice(*axes)]) // self.count

    def of(self, value: int) -> Axes | None:
        """Return the axes of a value, followed through views."""
        if value not in self.axes and (axes := self._through_view(value)) is not None:
            self.axes[value] = axes
        return self.axes.get(value)

    def split(self, value: int) -> bool:
        """Return whether the split produces tiles of the value, or of the value that it is a view of."""
        return self.of(value) is not None and self._inside(value)

    def _view(self, value: int) -> Op | None:
        producer = self.graph.values[value].producer
        op = self.graph.operations[producer] if producer >= 0 else None
        return op if op is not None and op.view else None

    def _through_view(self, value: int) -> Axes | None:
        op = self._view(value)
        if op is None:
            return None
        axes = self.of(op.reads[0])
        return None if axes is None else self.viewed(op, axes)

    def viewed(self, op: Op, axes: Axes) -> Axes | None:
        """Return the axes of the result of a view with a single result, from the axes of its base."""
        kind, results = ROWS.views.get(op.op), [v for v in op.writes if v is not None]
        if kind is None or len(results) != 1:
            return None
        before, after = self.shape(op.reads[0]), self.shape(results[0])
        if kind == "same":
            return axes
        if kind == "slice":
            at = int(op.args[1]) % len(before) if len(op.args) > 1 else 0
            return None if axes[0] <= at < axes[1] else axes
        if kind == "reshape":
            return _reshaped(before, after, axes, self.count)
        if kind == "transpose":
            first, second = (0, 1) if len(op.args) == 1 else (int(at) % len(before) for at in op.args[1:3])
            if axes[1] - axes[0] != 1:
                return None
            at = {first: second, second: first}.get(axes[0], axes[0])
            return at, at + 1
        if kind == "permute":
            at = [int(at) % len(before) for at in op.args[1]].index(axes[0])
            return _single(at) if axes[1] - axes[0] == 1 else None
        if kind == "squeeze":
            at = int(op.args[1]) % len(before)
            if before[at] != 1:
                return None if axes[0] <= at < axes[1] else axes
            return axes[0] - (at < axes[0]), axes[1] - (at < axes[1])
        if kind == "unsqueeze":
            at = int(op.args[1]) % (len(before) + 1)
            return None if axes[0] < at < axes[1] else (axes if at >= axes[1] else (axes[0] + 1, axes[1] + 1))
        shift = len(after) - len(before)
        return axes[0] + shift, axes[1] + shift

    def _learn(self, value: int, axes: Axes, op: Op) -> None:
        """Record the axes of a value and of its base, and check them against known ones."""
        known = self.of(value)
        if known is not None:
            if known != axes:
                raise _refused(op, f"{self._name(value)} has its rows elsewhere", "leave one of them out")
            return
        view = self._view(value)
        before = None if view is None else self._back(view, axes)
        if view is not None and before is not None:
            self._learn(view.reads[0], before, op)
        elif view is not None and self._inside(value):
            raise _refused(op, f"{view.op} leaves no rows of {self._name(view.reads[0])}", "leave it out")
        self.axes[value] = axes

    def _inside(self, value: int) -> bool:
        """Return whether the operations of the split produce the value or its base."""
        while value not in self._made and (op := self._view(value)) is not None:
            value = op.reads[0]
        return value in self._made

    def _back(self, view: Op, axes: Axes) -> Axes | None:
        """Return the axes of the base of a view, from those of the view."""
        results = [v for v in view.writes if v is not None]
        kind = ROWS.views.get(view.op) if len(results) == 1 else None
        if kind == "reshape":
            return _reshaped(self.shape(results[0]), self.shape(view.reads[0]), axes, self.count)
        if kind == "squeeze":
            at = int(view.args[1]) % len(self.shape(view.reads[0]))
            removed = self.shape(view.reads[0])[at] == 1
            return axes[0] + (removed and at <= axes[0]), axes[1] + (removed and at < axes[1])
        if kind == "permute":
            return _single(int(view.args[1][axes[0]]) % len(view.args[1])) if axes[1] - axes[0] == 1 else None
        return self.viewed(view, axes) if kind in ("same", "slice", "transpose") else None

    def _name(self, value: int) -> str:
        return repr(self.graph.values[value].name[:120])

    def _apply(self, i: int) -> bool:
        """Apply the rule of operation i. Return False if too little is known yet."""
        op = self.graph.operations[i]
        rule = ROWS.operators.get(op.op)
        if rule is None or op.random:
            why = why_not_drawn(self.graph, op) or ROWS.barriers.get(op.op, "there is no rule for its rows")
            raise _refused(op, why, "leave it out")
        if rule.reduces is not None and (op.args[rule.reduces] if rule.reduces < len(op.args) else 1) != 0:
            raise _refused(
                op,
                "it reduces all elements at once, which tiles would do in another order",
                'leave it out, or use reduction="none" in the model and take the mean of each row and then of the rows',
            )
        applied: _Found | None = _RULES[rule.rule](self, op, rule)
        if applied is None:
            return False
        self.read[i], outs = applied
        for value, axes in self.read[i].items():
            if value in self.sums or value in self.last:
                raise _refused(op, f"it reads all rows of {self._name(value)}", "leave it out")
            self._fits(op, value, axes)
            self._learn(value, axes, op)
        for value, out in zip(op.writes, outs, strict=False):
            if value is not None and isinstance(out, tuple):
                self._fits(op, value, out)
                self._learn(value, out, op)
            elif value in self.axes:
                raise _refused(op, f"it sums over the rows of {self._name(value)}", "leave it out")
            elif value is not None and out == LAST:
                self.last.add(value)
            elif value is not None:
                self.sums.add(value)
                if not self._backward(i) and rule.rule != "loss":
                    raise _refused(
                        op, "it sums over rows in forward, and tiles would change the order of the sum", "leave it out"
                    )
        for value in op.reads:
            producer = self.graph.values[value].producer
            inside = value in self.sums or value in self.last or self._inside(value)
            if value not in self.read[i] and inside and self._backward(i) == self._backward(producer):
                raise _refused(op, f"it reads all rows of {self._name(value)}", "leave it out")
        return True

    def _backward(self, i: int) -> bool:
        return i >= self.graph.backward_start

    def _fits(self, op: Op, value: int, axes: Axes) -> None:
        sizes = prod(self.shape(value)[slice(*axes)])
        if sizes == 0 or sizes % self.count or min(axes) < 0:
            raise _refused(op, f"the rows of {self._name(value)} are not adjacent", "leave it out")

    # Rules. Each returns the values that are read row by row, and the axes of each result (None: a sum).

    def elementwise(self, op: Op, rule: RowRule) -> _Found | None:
        result = next(v for v in op.writes if v is not None)
        rank = len(self.shape(result))
        out = self.of(result)
        for value in op.reads:
            if out is None and (axes := self.of(value)) is not None:
                shift = rank - len(self.shape(value))
                out = axes[0] + shift, axes[1] + shift
        if out is None:
            return None
        read: dict[int, Axes] = {}
        for value in op.reads:
            shape = self.shape(value)
            shift = rank - len(shape)
            start, end = max(0, out[0] - shift), max(0, out[1] - shift)
            if shape[start:end] == self.shape(result)[out[0] : out[1]]:
                read[value] = start, end
            elif prod(shape[start:end]) != 1:
                raise _refused(op, f"{self._name(value)} is shared by some rows", "leave it out")
        return read, [out] * len(op.writes)

    def along(self, op: Op, rule: RowRule) -> _Found | None:
        values = [v for at in rule.cut for v in values_in(op.args[at])]
        axes = next((known for v in values if (known := self.of(v)) is not None), None)
        if axes is None and rule.out[0] == "rows" and op.writes[0] is not None:
            axes = self.of(op.writes[0])
        if axes is None:
            return None
        rank = len(self.shape(values[0]))
        over = 0 if rule.over is None or rule.over >= len(op.args) else int(op.args[rule.over]) % rank
        if rule.over is not None and axes[0] <= over < axes[1]:
            raise _refused(op, "it computes along the rows", "leave it out")
        leading = rule.leading if rule.trailing is None else rank - len(op.args[rule.trailing])
        if leading is not None and axes[1] > leading:
            raise _refused(op, "its rows are not the first axis", "leave it out")
        if len({self.shape(v)[slice(*axes)] for v in values}) > 1:
            raise _refused(op, "its arguments have different numbers of rows", "leave it out")
        return dict.fromkeys(values, axes), [axes if out == "rows" else None for out in rule.out]

    def product(self, op: Op, rule: RowRule) -> _Found | None:
        left, right = (op.args[at].value for at in rule.cut)
        a, b, out = self.of(left), self.of(right), self.of(op.writes[0] or 0)
        if a == (1, 2) or (a is None and b == (0, 1)):
            if rule.cut != (0, 1):
                raise _refused(op, "it adds to a sum over rows", "leave it out")
            return {left: (1, 2), right: (0, 1)}, [None]
        if a == (0, 1) or (a is None and b is None and out == (0, 1)):
            read = {left: (0, 1)}
            if rule.cut != (0, 1) and self.shape(op.args[0].value)[:-1] not in ((), (1,)):
                read[op.args[0].value] = (0, 1)
            return read, [(0, 1)]
        if a is None and b is None and out is None:
            return None
        raise _refused(op, "its rows would be columns of a product", "leave it out")

    def reduce(self, op: Op, rule: RowRule) -> _Found | None:
        value = op.args[0].value
        axes, rank = self.of(value), len(self.shape(value))
        given = op.args[1] if len(op.args) > 1 else None
        over = {int(at) % rank for at in ((given,) if isinstance(given, int) else given or range(rank))}
        left = [at for at in range(rank) if at not in over or (len(op.args) > 2 and op.args[2])]
        if axes is None:
            result_axes = self.of(op.writes[0] or 0)
            if result_axes is None:
                return None
            axes = left[result_axes[0]], left[result_axes[1] - 1] + 1
        if over.isdisjoint(range(*axes)):
            return {value: axes}, [(left.index(axes[0]), left.index(axes[1] - 1) + 1)]
        if not over.issuperset(range(*axes)) or op.op != "aten.sum.dim_IntList":
            raise _refused(op, "it computes along the rows", "leave it out")
        return {value: axes}, [None]

    def sized(self, op: Op, rule: RowRule) -> _Found | None:
        result = next(v for v in op.writes if v is not None)
        shape, out = self.shape(result), self.of(result)
        for value in op.reads:
            axes = self.of(value)
            if out is None and axes is not None and self.shape(value)[: axes[1]] == shape[: axes[1]]:
                out = axes
        if out is None:
            return None
        return {v: out for v in op.reads if self.shape(v)[: out[1]] == shape[: out[1]]}, [out]

    def loss(self, op: Op, rule: RowRule) -> _Found | None:
        """A loss without reduction has rows. The second result, the sum of weights, then has no meaning.

        With reduction, `tile_loss` reads the target of all rows before the first tile.
        """
        scores: int = op.args[0].value
        target: int = op.args[1].value
        if op.args[3] and self._inside(target):
            maker = self.graph.operations[self.graph.values[self.graph.root[target]].producer].id[:120]
            raise _refused(op, f"it reads the target of all rows, which {maker!r} computes", f"leave {maker!r} out")
        scores_read = self._scores(op, scores)
        if scores_read is None:
            return None
        axes, own = scores_read
        return {scores: axes, target: own}, [None, None] if op.args[3] else [own, LAST]

    def loss_backward(self, op: Op, rule: RowRule) -> _Found | None:
        scores, target = op.args[1].value, op.args[2].value
        scores_read = self._scores(op, scores)
        if scores_read is None:
            return None
        axes, own = scores_read
        read = {scores: axes, target: own}
        return (read if op.args[4] else {op.args[0].value: own, **read}), [axes]

    def _scores(self, op: Op, value: int) -> tuple[Axes, Axes] | None:
        """Return the axes of the scores and of the target, which has no axis of classes (1)."""
        axes = self.of(value)
        if axes is None:
            return None
        first, stop = axes
        if stop - first != 1 or first == 1 or len(self.shape(value)) < 2:
            raise _refused(op, "its rows are not one axis beside that of classes", "leave it out")
        return axes, (axes if first == 0 else (first - 1, stop - 1))


_Found = tuple[dict[int, Axes], list[Axes | Literal["last"] | None]]
_RULES: dict[str, Any] = {
    "elementwise": Rows.elementwise,
    "along": Rows.along,
    "product": Rows.product,
    "reduce": Rows.reduce,
    "sized": Rows.sized,
    "loss": Rows.loss,
    "loss_backward": Rows.loss_backward,
}


def _refused(op: Op, why: str, hint: str) -> ScheduleError:
    return ScheduleError(NOT_SPLIT, f"{op.id[:120]!r} ({op.op}) cannot be split along rows: {why}", hint=hint)


def _single(axis: int) -> Axes:
    return axis, axis + 1


def _leading(shape: Sequence[int]) -> tuple[int, int]:
    """Return the product of the first axes, up to the first one with several elements, and how many axes these are."""
    end = next((at + 1 for at, size in enumerate(shape) if size > 1), 0)
    return prod(shape[:end]), end


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], axes: Axes, count: int) -> Axes | None:
    """Return the axes of rows after a change of shape; None if they do not stay adjacent."""
    ahead = prod(before[: axes[0]])
    start = next((at for at in range(len(after)) if prod(after[:at]) == ahead and after[at] > 1), None)
    if start is None:
        return None
    end = next((at for at in range(start + 1, len(after) + 1) if prod(after[start:at]) % count == 0), None)
    return None if end is None else (start, end)


def rows_of(graph: Graph, operations: Sequence[int]) -> Rows:
    """Return the rows of operations.

    They are the leading axes of the first operation's result. If the rules refuse these, they are those of the next
    forward operation with a fraction of the rows. An example are logits without their last word: only whole sequences
    are rows of all operations.

    Raises:
        ScheduleError: R091, some operation cannot be split. It says why with the rows of the first operation.
    """
    forward = [i for i in operations[1:] if i < graph.backward_start]
    refusal, fewest = None, 0
    for i in (operations[0], *forward):
        count = next((_leading(graph.values[v].type.shape)[0] for v in graph.operations[i].writes if v is not None), 1)
        if fewest and (not 1 < count < fewest or fewest % count):
            continue
        fewest = count
        try:
            return Rows(graph, operations, i)
        except ScheduleError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def bounds(rows: int, into: int) -> Iterator[tuple[int, int]]:
    """Yield for each tile its first row and the row after its last."""
    return ((tile * rows // into, (tile + 1) * rows // into) for tile in range(into))
