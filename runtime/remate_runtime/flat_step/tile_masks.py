"""Random masks in a split: drawn whole before the first tile, read by rows.

An operator that fills a tensor with zeros and ones, or multiplies by such a mask, becomes a random operation that draws
the mask, one byte for each element, and an ordinary operation that reads it. The split then treats the first as any
operation before the window, and cuts the second into tiles. On the CPU, the numbers of a mask depend on its elements'
order in memory only, so the mask is the same as without a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..format.tensor_type import TensorType
from ..operators.rows import ROWS
from .graph import Graph, Number, Op, Ref
from .renumbering import values_in
from .tile_types import expanded, memory_order
from .tile_writer import ALL, TILE, Costs, TileWriter, unknown

_DROPOUT = "aten.native_dropout"
_WIDE = ("f32", "f64")  # others round the factor of dropout first


class MaskedStep(NamedTuple):
    """A step whose masks are drawn on their own.

    Attributes:
        graph: The step.
        members: The operations of the split, ascending.
        origins: For each operation, the index of its original.
    """

    graph: Graph
    members: tuple[int, ...]
    origins: Sequence[int]


def why_not_drawn(graph: Graph, op: Op) -> str:
    """Return why the random numbers of an operation cannot be drawn before the tiles; "" if they can, or it draws
    none."""
    rule = ROWS.operators.get(op.op)
    if not op.random:
        return ""
    if rule is None or rule.rule != "drawn":
        return "it draws random numbers"
    if graph.device != "cpu":
        return f"on {graph.device}, the random numbers of a tile depend on the kernel that draws all of them"
    if op.op == _DROPOUT:
        return _why_no_dropout(graph, op)
    return "" if not op.kwargs and len(op.args) == 2 and op.writes[0] is not None else "it draws random numbers"


def _why_no_dropout(graph: Graph, op: Op) -> str:
    rate = op.args[1]
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        return "its rate is not a number from 0 to 1"
    if op.writes[0] is None or op.args[2] is False:
        return "it draws no random numbers"
    kind = graph.values[op.writes[0]].type
    return "" if kind.dtype in _WIDE else f"in {kind.dtype}, it rounds its factor before it multiplies"


def with_masks(graph: Graph, operations: Sequence[int], costs: Costs = unknown) -> MaskedStep:
    """Let the random operations of a split read masks that are drawn on their own.

    Args:
        graph: The step.
        operations: The operations of the split, ascending.
        costs: Times and workspaces of the resulting operations, where they are known.
    """
    drawn = {i for i in operations if graph.operations[i].random and not why_not_drawn(graph, graph.operations[i])}
    if not drawn:
        return MaskedStep(graph, tuple(operations), range(len(graph.operations)))
    out, place = TileWriter(graph, 1, costs), list[int]()
    for i, op in enumerate(graph.operations):
        out.append(_reader(out, i) if i in drawn else op, i)
        place.append(len(out.operations) - 1)
    backward_start = sum(i < graph.backward_start for i in out.origins)
    return MaskedStep(out.result(backward_start), tuple(place[i] for i in operations), out.origins)


def _reader(out: TileWriter, i: int) -> Op:
    """Write what draws the mask of operation i. Return the operation that reads it."""
    op = out.graph.operations[i]
    result = op.writes[0]
    assert result is not None
    kind, kwargs = out.type(result), dict[str, object]()
    if op.op == _DROPOUT:
        rate = float(op.args[1])
        mask = _mask(out, i, kind, 1 - rate, op.writes[1])
        operator, args = "aten.native_dropout_backward", (op.args[0], Ref(mask), 0.0 if rate == 1 else 1 / (1 - rate))
    else:
        mask = _mask(out, i, kind, op.args[1], None)
        operator, args, kwargs = "aten._to_copy", (Ref(mask),), {"dtype": {"dtype": kind.dtype}}
    reads = tuple(dict.fromkeys(values_in(args)))
    return Op(op.id, operator, args, kwargs, reads, (result,), False, False, False, op.ns, op.workspace, op.source)


def _mask(out: TileWriter, i: int, like: TensorType, kept: float | Number, value: int | None) -> int:
    """Draw a mask in the order of memory.

    Args:
        out: The step that is being written.
        i: Index of the original operation.
        like: The type of a tensor of the same shape and order.
        kept: The share of ones: a float, or a number that follows from live attributes.
        value: The value that the mask becomes. None: a new one.
    """
    name, order = f"{out.graph.operations[i].id}{TILE}{ALL}", memory_order(like)
    kind, ordered = replace(like, dtype="bool"), order == tuple(range(len(order)))
    plain = replace(kind, shape=tuple(kind.shape[at] for at in order), strides=None)
    empty = out.empty(i, f"{name}.empty", replace(plain, shape=(1,)))  # only its shape and type are read
    shaped = out.view(i, f"{name}.like", "aten.expand", empty, (plain.shape,), expanded(plain))
    mask = value if ordered and value is not None else out.new(f"{name}.mask", plain)
    out.emit(i, f"{name}.mask", "aten.bernoulli.p", (Ref(shaped), kept), (mask,))
    if ordered:
        return mask
    result = out.new(f"{name}.order", kind) if value is None else value
    back = tuple(order.index(at) for at in range(len(order)))
    out.emit(i, f"{name}.order", "aten.permute", (Ref(mask), back), (result,))
    return result
