"""Cuts computations into segments: where the block instance changes, and around interpreted operations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ...flat_step.graph import Graph, Op, numbers_in
from ...link.events import Run
from ...operator_calls.host_states import read_on_host
from .live_ranges import Piece

# These operators index elements and raise an error for indices out of range. Compiled code wraps some such indices
# around, and ends the process if a thread meets one.
_BY_NUMBER = frozenset(
    (
        *(
            "embedding",
            "embedding_dense_backward",
            "gather",
            "index",
            "index_add",
            "index_copy",
            "index_fill",
            "index_put",
        ),
        *("index_reduce", "index_select", "masked_scatter", "masked_scatter_backward", "max_unpool2d", "max_unpool3d"),
        *("multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_forward", "nll_loss_backward"),
        *("multilabel_margin_loss_backward", "nll_loss_forward", "nll_loss2d_backward", "nll_loss2d_forward"),
        *("put", "scatter", "scatter_add", "scatter_reduce", "take"),
        *("_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
    )
)
# These operators raise an error for inputs that are not probabilities. Compiled code computes a loss from them.
_REFUSES = frozenset(("binary_cross_entropy",))
# Eager raises an error when an integer is divided by 0; compiled code ends the process.
_DIVIDES = frozenset(("div", "floor_divide", "fmod", "remainder"))
_OPAQUE = (
    "aten.mkldnn_",
    "aten._grouped_mm",
)  # kernels without a decomposition, or with one that torch traces for some dtypes only
_INTEGERS = frozenset(("i64", "i32", "i16", "i8", "u8", "u16", "u32", "u64"))
_INTERPRETED = frozenset(
    ("c64", "c128", "f8e4m3", "f8e5m2", "u16", "u32", "u64")
)  # dtypes that Inductor does not support, or not fully


class Segment(NamedTuple):
    """A run of computations.

    Attributes:
        pieces: The computations, in order.
        compiled: They run as one compiled function; otherwise operator by operator.
        reads: Owners of the storages that the segment reads and does not produce.
        makes: Owners of the storages that the segment produces and leaves in memory.
        dead: The owners among `reads` that the segment frees.
    """

    pieces: tuple[Piece, ...]
    compiled: bool
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    dead: tuple[int, ...]


def segment(graph: Graph, row: Sequence[Piece], compiled: bool) -> Segment:
    """Return the segment that consists of these computations."""
    reads: dict[int, None] = {}
    written: set[int] = set()
    left: dict[int, None] = {}
    dead: dict[int, None] = {}
    for piece in row:
        op = graph.operations[piece.event.op]
        reads.update((graph.root[value], None) for value in op.reads if graph.root[value] not in written)
        for value in op.writes:
            if value is not None:
                written.add(value)
                left[value] = None
        for owner in piece.dead:
            if owner in written:
                del left[owner]
            else:
                dead[owner] = None
    return Segment(tuple(row), compiled, tuple(reads), tuple(left), tuple(dead))


def cut(
    graph: Graph, row: Sequence[Piece], leaves: Mapping[str, int], exact: Collection[int] = frozenset()
) -> list[Segment]:
    """Cut computations into segments. A recomputation belongs to the first run that follows it.

    Args:
        graph: The step.
        row: The computations.
        leaves: Number of the block instance of each operation, by id.
        exact: Operations that must not be compiled (`exact.exact`).
    """
    keys: list[tuple[int, bool]] = []
    leaf = -1
    for piece in reversed(row):
        op = graph.operations[piece.event.op]
        if isinstance(piece.event, Run) or leaf < 0:
            leaf = leaves.get(op.id, -1)
        keys.append((leaf, piece.event.op not in exact and compiles(graph, op)))
    marked = list(zip(reversed(keys), row, strict=True))
    return [
        segment(graph, [piece for _, piece in group], key[1])
        for key, group in groupby(marked, key=lambda pair: pair[0])
    ]


def compiles(graph: Graph, op: Op) -> bool:
    """Return whether an operation may be compiled.

    These may not: random operations, because Inductor draws from a different stream than eager; operators of other
    libraries; operations with numbers from live attributes, which change after compilation; dtypes that Inductor lacks;
    kernels without a decomposition; `as_strided`, which counts elements in storages, because Inductor changes their
    layout; and operators that raise an error for some data, because compiled code does not.
    """
    if numbers_in(op) or op.random or not op.op.startswith("aten.") or op.op.startswith("aten.as_strided"):
        return False
    if op.op.startswith(_OPAQUE):
        return False
    values = [value for value in (*op.reads, *op.writes) if value is not None]
    name, written = op.op.split(".")[1], {graph.values[value].type.dtype for value in op.writes if value is not None}
    if (name in _BY_NUMBER and not _has_looked_up(graph, op)) or (name in _DIVIDES and written <= _INTEGERS):
        return False
    if name in _REFUSES:
        return False
    if graph.device != "cpu" and any(graph.values[value].type.cpu for value in values):
        return False  # tensors on the CPU of a step on a GPU are small
    if read_on_host(op.op):
        return False  # fused attention, whose kernel Inductor only calls
    for value in values:
        chain = [graph.operations[index].op for index in views_to(graph, value)]
        kinds = {graph.values[each].type.dtype for each in (value, graph.root[value])}
        if any(name.startswith("aten.as_strided") for name in chain) or kinds & _INTERPRETED:
            return False
    return True


def _has_looked_up(graph: Graph, op: Op) -> bool:
    """Return whether this is the gradient of a loss that reads the same targets: the loss is interpreted, and checks
    them."""
    name = op.op.split(".")[1]
    if name not in ("nll_loss_backward", "nll_loss2d_backward"):
        return False
    loss, target = name.replace("backward", "forward"), op.args[2]
    return any(
        earlier.op.split(".")[1] == loss and earlier.args[1] == target
        for earlier in graph.operations[: graph.backward_start]
    )


def views_to(graph: Graph, value: int) -> list[int]:
    """Return the operations, all of them views, that lead from the owner of the storage to `value`."""
    chain: list[int] = []
    while value != graph.root[value]:
        chain.append(graph.values[value].producer)
        value = graph.operations[chain[-1]].reads[0]
    return chain[::-1]
