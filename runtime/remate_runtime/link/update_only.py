"""Whether a step uses the buffers that it updates for anything but their new values, as batch norm does in training."""

from __future__ import annotations

from ..flat_step import Graph, Op, Ref

_WITH_MODE = "aten._native_batch_norm_legit_functional"  # its sixth argument says whether it is in training
_NORMS = {  # the first result that is a new statistic
    _WITH_MODE: 3,
    "aten._batch_norm_with_update_functional": 4,
}
_STATISTICS = (3, 4)  # numbers of the arguments that are old ones


def updates_only(graph: Graph) -> bool:
    """Return whether only the new values of buffers follow from the old ones. Then forward has the same results when it
    runs again after its own updates."""
    followers = {buffer for buffer, _ in graph.updates}
    for at, op in enumerate(graph.operations):
        if followers.isdisjoint(op.reads):
            continue
        if at >= graph.backward_start:
            return False
        first = _NORMS.get(op.op, 0) if followers.isdisjoint(_others(op)) else 0
        followers.update(value for value in op.writes[first:] if value is not None)
    return followers.isdisjoint(graph.outputs)


def _others(op: Op) -> set[int]:
    """Return what an operation reads in other places than the statistics of a batch norm in training."""
    if op.op not in _NORMS or (op.op == _WITH_MODE and op.args[5] is not True):
        return set(op.reads)
    return {arg.value for at, arg in enumerate(op.args) if isinstance(arg, Ref) and at not in _STATISTICS}
