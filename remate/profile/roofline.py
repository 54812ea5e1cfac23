"""The roofline model: an operation takes the longer of its arithmetic and its memory traffic, plus a launch.

It is deterministic and needs types only, so that a plan for a device can be made without it. Does not require torch.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from remate_runtime.flat_step import Graph, Op
from remate_runtime.format import TensorType

from .communication import communication, is_collective
from .cost import Cost
from .devices import Device
from .flops import GATHERING, matrix_flops, vector_flops
from .workspace import workspace

# Only the shape or dtype of these operators' tensor argument matters; nothing is read.
_READ_NOTHING = frozenset(
    """zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty
    new_empty_strided""".split()
)
# These read the elements twice, first for statistics.
_READ_TWICE = frozenset(
    """native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update_functional
    native_batch_norm_backward batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward native_group_norm
    native_group_norm_backward native_layer_norm_backward std var var_mean""".split()
)
_ATTENTION = "aten._scaled_dot_product_"


def estimate(graph: Graph, op: Op, device: Device) -> Cost:
    """Return time (at least 1 ns) and workspace of an operation on `device`."""
    if is_collective(op):
        return communication(graph, op, device)
    matrix, vector, bandwidth = device.efficiency
    matrix = _share_of_attention(op.op, device) or matrix
    dtype = _arithmetic_dtype(graph, op)
    fast = "tf32" if dtype == "f32" and op.op.startswith("aten.convolution") else dtype
    matrix_rate = device.matrix.get(fast, device.matrix.get(dtype, device.matrix["f32"]))
    vector_rate = device.vector.get(dtype, device.vector["f32"])
    arithmetic = matrix_flops(graph, op) / (matrix_rate * matrix) + vector_flops(graph, op) / (vector_rate * vector)
    traffic = _bytes_moved(graph, op) / (device.bandwidth * bandwidth)
    ns = device.launch_ns + round(max(arithmetic, traffic) * 1e9)
    return Cost(ns=max(1, ns), workspace=workspace(graph, op, device.kind))


def _share_of_attention(name: str, device: Device) -> float | None:
    """Return the share of the peak that a kernel of fused attention reaches; None if it is not known."""
    if not name.startswith(_ATTENTION) or "_for_cpu" in name:
        return None
    forward, backward = device.attention.get(name.removeprefix(_ATTENTION).split("_")[0], (None, None))
    return backward if name.endswith("_backward") else forward


def _arithmetic_dtype(graph: Graph, op: Op) -> str:
    """Return the dtype of the largest floating-point tensor read (or written, if none is read).

    Complex numbers count as real pairs.
    """
    values = [v for v in (*op.reads, *op.writes) if v is not None]
    types = [t for t in (graph.values[v].type for v in values) if t.dtype[0] in "fbc" and t.dtype != "bool"]
    if not types:
        return "f32"
    dtype = max(types, key=lambda t: t.nbytes).dtype
    return {"c64": "f32", "c128": "f64"}.get(dtype, dtype)


def _bytes_moved(graph: Graph, op: Op) -> int:
    name = op.op.split(".")[1]
    written = sum(_extent(graph.values[v].type) for v in op.writes if v is not None)
    if name in _READ_NOTHING:
        return written
    read = [_extent(graph.values[v].type) for v in op.reads]
    if name in GATHERING and read:
        read[0] = min(read[0], written)
    return written + sum(read) * (2 if name in _READ_TWICE else 1)


def _extent(type_: TensorType) -> int:
    """Return the bytes that are accessed: the storage of an expanded tensor, the elements of a strided one."""
    contiguous = TensorType(type_.dtype, type_.shape).nbytes
    return min(contiguous, type_.nbytes)
