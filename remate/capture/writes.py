"""Simplifies writes into parts of a tensor. Functionalization turns each into a copy of the part and a copy of the
whole.

`y[:, 1:5] += x` is traced with two such copies, and its backward with four more. This module removes copies of parts
that are only written, and writes of a part to its own place. The linker runs the rest in place if the old tensor dies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Graph, Node
from torch.fx.node import Argument

from remate_runtime.operators import IN_PLACE

from . import facts

Replace = Callable[[Node, Node], None]

_THROUGH = {name: form.through for name, form in IN_PLACE.items() if form.through is not None}


def simplify_writes(graph: Graph, replace: Replace) -> None:
    """Simplify the writes of `graph`. replace: replaces a node by another with equal values, where that is allowed."""
    for node in graph.nodes:
        view = _THROUGH.get(_name(node))
        if view is None or node.kwargs or any(isinstance(argument, Node) for argument in node.args[2:]):
            continue
        written = _before_copies(node.args[1])
        node.args = (node.args[0], written, *node.args[2:])
        if _is_part(written, view, node):
            replace(node, node.args[0])
        else:
            node.args = (_overwritten(node), *node.args[1:])


def _before_copies(node: Argument) -> Argument:
    """The tensor before a chain of copies."""
    while isinstance(node, Node) and _name(node) in ("aten.clone", "aten.copy"):
        source = node.args[1 if _name(node) == "aten.copy" else 0]
        if not _same_kind(source, node):
            break
        node = source
    return node


def _overwritten(node: Node) -> Argument:
    """The tensor that `node` writes into, without earlier unread writes of the same part."""
    onto = node.args[0]
    while (
        isinstance(onto, Node)
        and onto.target is node.target
        and not onto.kwargs
        and onto.args[2:] == node.args[2:]
        and len(onto.users) == 1
        and _same_layout(onto, onto.args[0])
    ):
        onto = onto.args[0]
    return onto


def _is_part(written: object, view: str, node: Node) -> bool:
    """Whether the written tensor is the part of the tensor that it replaces."""
    return (
        isinstance(written, Node)
        and _name(written) == view
        and not written.kwargs
        and written.args[0] is node.args[0]
        and written.args[1:] == node.args[2:]
        and _same_layout(node, node.args[0])
    )


def _same_kind(left: object, right: object) -> bool:
    a, b = _tensor(left), _tensor(right)
    return (
        a is not None
        and b is not None
        and (a.shape, a.dtype, a.device, a.is_conj(), a.is_neg())
        == (b.shape, b.dtype, b.device, b.is_conj(), b.is_neg())
    )


def _same_layout(left: object, right: object) -> bool:
    a, b = _tensor(left), _tensor(right)
    return _same_kind(left, right) and a is not None and b is not None and a.stride() == b.stride()


def _tensor(node: object) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _name(node: Node) -> str:
    return facts.name(node.target) if facts.is_operator(node.target) else ""
