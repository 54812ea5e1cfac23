"""Collects the operations and values of a step that is being rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ..format.tensor_type import TensorType
from ..operators import RANDOM, VIEWS
from .graph import Argument, Graph, Op, Ref, Value, roots
from .renumbering import values_in

TILE = "@"  # in ids: OPERATION@TILE
ALL = "all"  # in place of the number of a tile: an operation that runs once for all tiles
# Id of a resulting operation -> ns and workspace. None: its share of the whole time, and the workspace of the whole.
Costs = Callable[[str], tuple[int | None, int | None]]


def unknown(name: str) -> tuple[int | None, int | None]:
    """The costs of a step without costs of tiles."""
    return None, None


class TileWriter:
    """Writes a step.

    Attributes:
        values: Values of the original graph, then new ones.
        operations: The operations so far.
        origins: For each of them, the index of its original in the graph.
    """

    def __init__(self, graph: Graph, into: int, costs: Costs) -> None:
        self.graph, self.into, self.costs = graph, into, costs
        self.values: list[Value] = list(graph.values)
        self.operations: list[Op] = []
        self.origins: list[int] = []

    def type(self, value: int) -> TensorType:
        return self.values[value].type

    def new(self, name: str, kind: TensorType) -> int:
        self.values.append(Value(name, kind, "op"))
        return len(self.values) - 1

    def emit(
        self,
        i: int,
        name: str,
        operator: str,
        args: tuple[Argument, ...],
        writes: tuple[int | None, ...],
        kwargs: Mapping[str, Argument] | None = None,
        like: Op | None = None,
    ) -> None:
        """Append an operation.

        Args:
            i: Index of its original.
            name: Its id.
            operator: Its operator.
            args: Positional arguments.
            writes: Its results.
            kwargs: Keyword arguments; by default those of `like`.
            like: An operation with the same keyword arguments and kind of result.
        """
        kwargs = dict(kwargs or (like.kwargs if like else {}))
        reads = tuple(dict.fromkeys(values_in((args, tuple(kwargs.values())))))
        source, view = self.graph.operations[i].source, operator in VIEWS
        ns, workspace = (0, 0) if view else self._cost(i, name)
        multiple, random = like.multiple if like else False, operator in RANDOM
        self.append(Op(name, operator, args, kwargs, reads, writes, multiple, view, random, ns, workspace, source), i)

    def _cost(self, i: int, name: str) -> tuple[int, int]:
        op, (ns, workspace) = self.graph.operations[i], self.costs(name)
        if not name.rpartition(TILE)[2].isdecimal():
            return ns or 0, workspace or 0
        return -(-op.ns // self.into) if ns is None else ns, op.workspace if workspace is None else workspace

    def append(self, op: Op, origin: int) -> None:
        for v in op.writes:
            if v is not None:
                self.values[v] = replace(self.values[v], producer=len(self.operations))
        self.operations.append(op)
        self.origins.append(origin)

    def result(self, backward_start: int) -> Graph:
        """Return the step. It may have values that no operation produces any more: see `without_unproduced`."""
        values, operations = tuple(self.values), tuple(self.operations)
        root = roots(len(values), operations)
        return replace(self.graph, values=values, operations=operations, backward_start=backward_start, root=root)

    def becomes(self, value: int, of: int) -> None:
        """Let a new value take the place of value `of` of the graph."""
        at = self.values[value].producer
        last = self.operations[at]
        self.operations[at] = replace(last, writes=tuple(of if v == value else v for v in last.writes))
        self.values[of] = replace(self.values[of], producer=at)

    def empty(self, i: int, name: str, kind: TensorType) -> int:
        """Append the allocation of a contiguous tensor."""
        result = self.new(name, kind)
        where = {"dtype": {"dtype": kind.dtype}, "device": {"device": "cpu" if kind.cpu else "main"}}
        self.emit(i, name, "aten.empty.memory_format", (kind.shape,), (result,), where)
        return result

    def view(
        self, i: int, name: str, operator: str, value: int, arguments: tuple[Argument, ...], kind: TensorType
    ) -> int:
        """Append a view of a value. arguments: those after the value."""
        result = self.new(name, kind)
        self.emit(i, name, operator, (Ref(value), *arguments), (result,))
        return result

    def filled(self, i: int, name: str, whole: int, part: int, axis: int, bounds: tuple[int, int]) -> int:
        """Append a write of a tile into the whole. It runs in place, as nothing reads the whole before."""
        result = self.new(name, self.type(whole))
        self.emit(i, name, "aten.slice_scatter", (Ref(whole), Ref(part), axis, *bounds), (result,))
        return result

    def cast(self, i: int, name: str, value: int, dtype: str, into: int | None = None) -> int:
        """Append a copy with another element type. into: the value that it becomes; by default a new one."""
        result = self.new(name, replace(self.type(value), dtype=dtype)) if into is None else into
        self.emit(i, name, "aten._to_copy", (Ref(value),), (result,), {"dtype": {"dtype": dtype}})
        return result
