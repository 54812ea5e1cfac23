"""Gives gradients of parameters the memory layout that autograd requires, by copies within the step.

AccumulateGrad keeps a gradient with the strides of its parameter (contiguous strides for a parameter with gaps or
overlaps), and copies any other ("gradient layout contract" in torch/csrc/autograd). A copy in the step is part of the
plan, and the original is freed at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.fx import Graph, Node

from .views import root

_ATEN: Any = torch.ops.aten


def lay_out_gradients(graph: Graph, results: list[Node], parameters: Mapping[int, torch.Tensor]) -> None:
    """Add the copies to `graph`, in place. results: nodes whose values leave the graph, changed in place. parameters:
    the parameter of each gradient, by position in `results`."""
    copies: dict[tuple[Node, tuple[int, ...]], Node] = {}
    for at, parameter in parameters.items():
        node = results[at]
        if root(node).op != "call_function" or node.meta["val"].layout is not torch.strided:
            continue
        strides = _kept(parameter)
        if not _has_strides(node.meta["val"], strides):
            copied = copies.get((node, strides)) or _copy(graph, node, strides)
            copies[node, strides] = results[at] = copied


def _kept(parameter: torch.Tensor) -> tuple[int, ...]:
    dense = torch.empty_like(parameter).stride() == parameter.stride()  # does not keep other strides
    return tuple(parameter.stride() if dense else make_contiguous_strides_for(parameter.shape))


def _has_strides(gradient: torch.Tensor, strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or stride == wanted
        for size, stride, wanted in zip(gradient.shape, gradient.stride(), strides, strict=True)
    )


def _copy(graph: Graph, node: Node, strides: tuple[int, ...]) -> Node:
    """Copy the gradient, with its axes in the order of descending strides, and permute it back."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    back = [order.index(axis) for axis in range(len(order))]
    straight = order == back == [*range(len(order))]
    turned = node if straight else _call(graph, node, _ATEN.permute.default, node, order)
    copied = _call(graph, turned, _ATEN.clone.default, turned, memory_format=torch.contiguous_format)
    return copied if straight else _call(graph, copied, _ATEN.permute.default, copied, back)


def _call(graph: Graph, previous: Node, operator: Any, source: Node, *args: Any, **kwargs: Any) -> Node:
    with graph.inserting_after(previous):
        node = graph.call_function(operator, (source, *args), kwargs)
    node.meta.update(source.meta, val=operator(source.meta["val"], *args, **kwargs))
    return node
