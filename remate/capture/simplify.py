"""Removes from a traced graph what costs nothing to leave out and changes no value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from remate_runtime.operators import WAIT

from . import facts
from .returned_buffers import return_buffers
from .views import base, layout, root
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
    graph: Graph, results: list[Node], returned: Collection[int], lies_in: Mapping[int, tuple[int, Node]]
) -> list[Node]:
    """`graph` is changed in place; `results` are the nodes whose values leave it, those at the positions `returned` to
    the caller of forward. lies_in: as of `return_buffers`. Returns what stands for each of them."""
    _drop_assertions(graph)
    _drop_same(graph, results)
    _merge_casts(graph, results)
    _drop_views(graph, results)

    def replace_copy(node: Node, other: Node) -> None:
        if _apart(node, other, [results[at] for at in returned]):
            _replace(node, other, results)

    _drop_copies(graph, results, replace_copy)
    simplify_writes(graph, replace_copy)
    _copy_leaving_constants(graph, results)
    return_buffers(graph, results, lies_in)
    _forget_running_statistics(graph)
    _drop_dead(graph, results)
    return results


def _replace(node: Node, other: Any, results: list[Node]) -> None:
    """`other` may be made from `node`: it goes on reading it."""
    node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not other)
    for at, result in enumerate(results):
        if result is node:
            results[at] = other


def _apart(node: Node, other: Node, outputs: Collection[Node]) -> bool:
    """Whether no output lies where the caller, or another output, sees what is written into it, if `other` stands for
    `node`, which is a copy of it."""
    leaving = {root(output) for output in outputs}
    under = root(other)
    return root(node) not in leaving or (under.op == "call_function" and under not in leaving)


def _drop_assertions(graph: Graph) -> None:
    for node in reversed(graph.nodes):
        if isinstance(node.target, OpOverload) and facts.packet(node.target).startswith(_ASSERTIONS) and not node.users:
            graph.erase_node(node)


def _drop_same(graph: Graph, results: list[Node]) -> None:
    """Operators that return their argument, and copies of constants (nothing writes into either)."""
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or not node.args or not isinstance(node.args[0], Node):
            continue
        name = facts.name(node.target)
        constant = node.args[0].op == "get_attr" and name in ("aten.lift_fresh_copy", "aten.clone")
        if constant or (name in _SAME and layout(node) == layout(node.args[0])):
            _replace(node, node.args[0], results)


def _copy_leaving_constants(graph: Graph, results: list[Node]) -> None:
    """Whoever gets a constant may write into it, and eager makes it anew in every call."""
    for node in {root(result) for result in results}:
        if node.op == "get_attr":
            with graph.inserting_after(node):
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {"val": getattr(graph.owning_module, str(node.target)), **node.meta}
            _replace(node, copy, results)


def _merge_casts(graph: Graph, results: list[Node]) -> None:
    """One cast of a parameter for all its uses, as the cache of autocast does; sources do not change within forward."""
    seen: dict[Any, Node] = {}
    for node in graph.nodes:
        cast = isinstance(node.target, OpOverload) and facts.name(node.target) == "aten._to_copy"
        if cast and isinstance(node.args[0], Node) and node.args[0].op == "placeholder" and layout(node) is not None:
            first = seen.setdefault((node.args[0], *sorted((k, str(v)) for k, v in node.kwargs.items())), node)
            if first is not node:
                _replace(node, first, results)


def _drop_views(graph: Graph, results: list[Node]) -> None:
    """A view that looks exactly like what it was made from, or an earlier link of that chain: t(t(x)) is x."""
    for node in graph.nodes:
        lies = layout(node) if base(node) is not None else None
        under, same = node, None
        while lies is not None and (above := base(under)) is not None:
            under = above
            if layout(under) == lies:
                same = under
        if same is not None:
            _replace(node, same, results)


def _drop_copies(graph: Graph, results: list[Node], replace: Replace) -> None:
    """Copies of a whole storage that the step made: without writes nobody can tell them from the original."""
    of = {"aten.clone": 0, "aten.copy": 1}
    for node in graph.nodes:
        name = facts.name(node.target) if isinstance(node.target, OpOverload) else ""
        if name not in of or node in results:
            continue
        source = node.args[of[name]]
        if not isinstance(source, Node) or layout(node) != layout(source):
            continue
        owner = root(source)
        made = owner.op == "call_function" and not isinstance(owner.meta.get("val"), tuple | list)
        if made and owner.meta["val"].numel() == source.meta["val"].numel():
            replace(node, source)


_BATCH_NORM_BACKWARD = ("aten.native_batch_norm_backward", "aten.batch_norm_backward")


def _forget_running_statistics(graph: Graph) -> None:
    """Batch norm's backward takes the running statistics, but in training reads those of the batch alone. Without this
    a copy of the old statistics would live until backward, since the step updates them."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and facts.name(node.target) in _BATCH_NORM_BACKWARD:
            training = node.args[7]
            if training is True:
                node.args = (*node.args[:3], None, None, *node.args[5:])


def _drop_dead(graph: Graph, results: list[Node]) -> None:
    """What nobody reads. Random operations stay: they move the generator."""
    kept = set(results)
    for node in reversed(graph.nodes):
        if node.op != "call_function" or node.users or node in kept:
            continue
        if not (isinstance(node.target, OpOverload) and facts.random(node.target)):
            graph.erase_node(node)
