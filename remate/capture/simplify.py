"""Removes redundant operations from a traced graph. No value changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from remate_runtime.operators import WAIT

from . import facts
from .returned_buffers import return_buffers
from .views import base, keeps_order, layout, root
from .writes import Replace, simplify_writes

_ASSERTIONS = (
    "_assert",
    "_linalg_check_errors",
    "_functional_assert",
    "sym_constrain_range",
    "_functional_sym_constrain_range",
)
_SAME = {"aten.alias", "aten.detach", "aten.lift_fresh", "prims.view_of", WAIT}  # the runtime waits for collectives


def simplify(
    graph: Graph, results: list[Node], returned: Collection[int], in_buffers: Mapping[int, tuple[int, Node]]
) -> list[Node]:
    """Simplify `graph` in place.

    Args:
        graph: The graph.
        results: Nodes whose values leave the graph.
        returned: Positions in `results` that the caller of forward receives.
        in_buffers: See `return_buffers`.

    Returns:
        The nodes that replace `results`.
    """
    _drop_assertions(graph)
    _drop_same(graph, results)
    _drop_views(graph, results)

    def replace_copy(node: Node, other: Node) -> None:
        if _apart(node, other, [results[at] for at in returned]):
            _replace(node, other, results)

    _drop_copies(graph, results, replace_copy)
    simplify_writes(graph, replace_copy)
    _copy_leaving_constants(graph, results)
    return_buffers(graph, results, in_buffers)
    _forget_running_statistics(graph)
    _drop_dead(graph, results)
    return results


def _replace(node: Node, other: Any, results: list[Node]) -> None:
    """Replace all uses of `node` by `other`, except those in `other` itself."""
    node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not other)
    for at, result in enumerate(results):
        if result is node:
            results[at] = other


def _apart(node: Node, other: Node, outputs: Collection[Node]) -> bool:
    """Whether `other` can replace its copy `node` without an output that shares memory with a tensor of the caller or
    with another output."""
    leaving = {root(output) for output in outputs}
    under = root(other)
    return root(node) not in leaving or (under.op == "call_function" and under not in leaving)


def _drop_assertions(graph: Graph) -> None:
    for node in reversed(graph.nodes):
        if facts.is_operator(node.target) and facts.packet(node.target).startswith(_ASSERTIONS) and not node.users:
            graph.erase_node(node)


def _drop_same(graph: Graph, results: list[Node]) -> None:
    """Drop operators that return their argument, and copies of constants. Nothing writes into either."""
    for node in graph.nodes:
        if not facts.is_operator(node.target) or not node.args or not isinstance(node.args[0], Node):
            continue
        name = facts.name(node.target)
        constant = node.args[0].op == "get_attr" and name in ("aten.lift_fresh_copy", "aten.clone")
        if constant or (name in _SAME and layout(node) == layout(node.args[0])):
            _replace(node, node.args[0], results)


def _copy_leaving_constants(graph: Graph, results: list[Node]) -> None:
    """Copy constants that the step returns: the caller may write into them, and eager creates them in every call."""
    for node in {root(result) for result in results}:
        if node.op == "get_attr":
            with graph.inserting_after(node):
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {"val": getattr(graph.owning_module, str(node.target)), **node.meta}
            _replace(node, copy, results)


def _drop_views(graph: Graph, results: list[Node]) -> None:
    """Drop a view that equals an earlier tensor of its chain of views: t(t(x)) is x."""
    for node in graph.nodes:
        node_layout = layout(node) if base(node) is not None else None
        under, same, chain = node, None, list[Node]()
        while node_layout is not None and (above := base(under)) is not None:
            chain.append(under)
            under = above
            if layout(under) == node_layout and keeps_order(under, chain):
                same = under
        if same is not None:
            _replace(node, same, results)


def _drop_copies(graph: Graph, results: list[Node], replace: Replace) -> None:
    """Drop copies of whole storages of the step. Without writes they equal the original."""
    of = {"aten.clone": 0, "aten.copy": 1}
    for node in graph.nodes:
        name = facts.name(node.target) if facts.is_operator(node.target) else ""
        if name not in of or node in results:
            continue
        source = node.args[of[name]]
        if not isinstance(source, Node) or layout(node) != layout(source):
            continue
        owner = root(source)
        computed = owner.op == "call_function" and not isinstance(owner.meta.get("val"), tuple | list)
        if computed and owner.meta["val"].numel() == source.meta["val"].numel():
            replace(node, source)


_BATCH_NORM_BACKWARD = ("aten.native_batch_norm_backward", "aten.batch_norm_backward")


def _forget_running_statistics(graph: Graph) -> None:
    """Remove the running statistics from batch norm's backward, which reads only the batch's statistics in training.
    Otherwise a copy of the old statistics would live until backward."""
    for node in graph.nodes:
        if facts.is_operator(node.target) and facts.name(node.target) in _BATCH_NORM_BACKWARD:
            training = node.args[7]
            if training is True:
                node.args = (*node.args[:3], None, None, *node.args[5:])


def _drop_dead(graph: Graph, results: list[Node]) -> None:
    """Drop unread operations. Random operations stay, because they advance the generator."""
    kept = set(results)
    for node in reversed(graph.nodes):
        if node.op != "call_function" or node.users or node in kept:
            continue
        if not (facts.is_operator(node.target) and facts.random(node.target)):
            graph.erase_node(node)
