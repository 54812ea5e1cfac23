"""Storages that nodes of a traced graph share, and their layouts."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from . import facts


def base(node: Node) -> Node | None:
    """Return the node whose storage `node` shares, or None if it has its own."""
    if node.op != "call_function":
        return None
    source = node
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        source = node.args[0]
    if isinstance(source.target, OpOverload) and facts.view(source.target):
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
