"""Storages that nodes of a traced graph share, and their layouts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from . import facts


def base(node: Node) -> Node | None:
    """Return the node whose storage `node` shares, or None if it has its own."""
    if node.op != "call_function":
        return None
    source = node
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        source = node.args[0]
    if facts.is_operator(source.target) and facts.view(source.target):
        return next(iter(source.all_input_nodes), None)
    return None


def root(node: Node) -> Node:
    while (under := base(node)) is not None:
        node = under
    return node


def layout(node: object) -> Any:
    """Return everything that distinguishes two tensors on one storage; None for other values."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    shape = (value.dtype, value.device, tuple(value.shape), tuple(value.stride()), value.storage_offset())
    return (*shape, value.is_conj(), value.is_neg())


def keeps_order(node: Node, chain: Sequence[Node]) -> bool:
    """Return whether a chain of views (last to first) of `node` is `node` again because of what the views do.

    If dimensions are expanded, a transposed square has the same strides, and at another size it is none.
    """
    value = node.meta["val"]
    expanded = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride == 0 and size > 1]
    if len(set(expanded)) == len(expanded):
        return True
    start = torch.empty(value.shape, dtype=value.dtype, device="meta")
    tensor: Any = start
    for view in reversed(chain):
        if not facts.is_operator(view.target):
            return False
        try:
            tensor = view.target(tensor, *view.args[1:], **view.kwargs)
        except RuntimeError:  # a view of an expanded tensor only
            return False
    return tensor.shape == start.shape and tensor.stride() == start.stride()
