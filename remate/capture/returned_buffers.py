"""Outputs that lie in a buffer which forward updates: the buffer itself, so that the caller writes into that (a memory
that a loop sets to zero), and not a tensor that has its new values.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch.fx import Graph, Node

from .views import base, layout


def storage_of(tensor: torch.Tensor) -> object:
    """What two tensors have in common that share memory; of a tensor without storage, itself."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return tensor


def return_buffers(graph: Graph, results: list[Node], lies_in: Mapping[int, tuple[int, Node]]) -> None:
    """lies_in: by position in `results`, where among them the new value of the buffer is that an output lies in, and
    the buffer."""
    for at, (updated, buffer) in lies_in.items():
        new, chain, node = _new_values(results[updated]), [], results[at]
        while node not in new and (under := base(node)) is not None:
            chain.append(node)
            node = under
        of_several = any(view.target is operator.getitem for view in chain)
        if node not in new or of_several or layout(node) != layout(buffer):
            continue
        copied = buffer
        for view in reversed(chain):
            with graph.inserting_after(view):
                over, under = base(view), copied
                copied = graph.node_copy(
                    view, lambda argument, over=over, under=under: under if argument is over else argument
                )
        results[at] = copied


def _new_values(updated: Node) -> tuple[object, ...]:
    """Nodes that the new value of a buffer stands for: a tensor that was assigned is copied into it."""
    return (updated, updated.args[1]) if updated.target is torch.ops.aten.copy.default else (updated,)
