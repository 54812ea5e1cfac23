"""The cost of a collective: the latency of a rank's link, and the time of its bytes at the link's bandwidth.

Collectives are never measured: all ranks would have to take part. An all-reduce sends its tensor twice (a
reduce-scatter and an all-gather); an all-gather and a reduce-scatter send what the larger tensor has beyond the smaller
one; the others send their tensor once.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
19(1), 2005, for long messages and many ranks.
"""

from __future__ import annotations

from remate_runtime.flat_step import Graph, Op
from remate_runtime.operators import COLLECTIVES

from .cost import Cost
from .devices import Device, Link


def is_collective(op: Op) -> bool:
    return op.op in COLLECTIVES


def communication(graph: Graph, op: Op, device: Device) -> Cost:
    """Time and workspace of one collective on `device`."""
    argument_bytes = sum(graph.values[value].type.nbytes for value in op.reads)
    result_bytes = sum(graph.values[value].type.nbytes for value in op.writes if value is not None)
    sent = COLLECTIVES[op.op].sent * (abs(result_bytes - argument_bytes) or result_bytes)
    ns = device.link.latency_ns + round(sent / device.link.bandwidth * 1e9)
    return Cost(ns=ns, workspace=_workspace(op, argument_bytes, result_bytes) if device.kind == "cpu" else 0)


def between(device: Device, ranks: int, apart: int, machine: int, network: float) -> Link:
    """Return the link of a rank to the others of a mesh dimension.

    Each GPU has a network card. All cards of the ranks of one machine carry what the machine receives.

    Args:
        device: The device.
        ranks: Number of ranks of the dimension.
        apart: Difference between the numbers of neighbouring ranks.
        machine: GPUs of a machine.
        network: Bytes/s of a GPU to other machines, each way.
    """
    if ranks * apart <= machine:
        return device.link
    return Link(device.link.latency_ns, min(device.link.bandwidth, network * max(1, machine // apart)))


def gathering_ns(nbytes: int, ranks: int, link: Link) -> int:
    """Return the time to gather `nbytes` from all ranks, or to reduce and scatter them."""
    if ranks < 2 or not nbytes:
        return 0
    return link.latency_ns + round(nbytes * (ranks - 1) / ranks / link.bandwidth * 1e9)


def _workspace(op: Op, argument_bytes: int, result_bytes: int) -> int:
    """Gloo gathers into a second tensor, and reduces the whole tensor before it scatters. NCCL works in place."""
    if op.op.endswith("all_gather_into_tensor"):
        return result_bytes
    return argument_bytes if op.op.endswith("reduce_scatter_tensor") else 0
