"""Outputs that share memory with an updated buffer. The step returns the buffer itself, so that the caller can write to
it, for example to reset a memory to zero.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from .views import base, layout


def storage_of(tensor: torch.Tensor) -> object:
    """Return a key that is equal for tensors that share memory. A tensor without storage is its own key."""
    try:
        storage: Any = tensor.untyped_storage()
        return storage._cdata
    except (NotImplementedError, RuntimeError):
        return tensor


def return_buffers(graph: Graph, results: list[Node], in_buffers: Mapping[int, tuple[int, Node]]) -> None:
    """Replace outputs by views of the buffers. in_buffers: by position of such an output in `results`, the position of
    the buffer's new value, and the buffer."""
    for at, (updated, buffer) in in_buffers.items():
        new, chain, node = _new_values(results[updated]), list[Node](), results[at]
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
    """Nodes that equal the new value of a buffer. An assigned tensor is copied into it."""
    return (updated, updated.args[1]) if updated.target is torch.ops.aten.copy.default else (updated,)
