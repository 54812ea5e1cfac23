"""Replaces the nodes of opaque blocks in a traced graph by the graphs of the blocks."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from .. import torch_api
from .errors import UnlikeError
from .opaque import FORWARD, STANDS_FOR, Standing, standing
from .template import PATH, Key, Template


class PastedInstance(msgspec.Struct, frozen=True):
    """A block. template: the template of the block at `path`."""

    template: Template
    path: str


def paste(module: GraphModule, instances: Mapping[int, PastedInstance]) -> None:
    """Replace the opaque nodes of `module` by the nodes of the templates. Raises UnlikeError if the result would not be
    the graph of the whole step."""
    constants: dict[tuple[int, str], str] = {}
    copies: dict[int, dict[Node, Node]] = {}
    for node in list(module.graph.nodes):
        if node.target is not STANDS_FOR:
            continue
        what = standing(node.args[1])
        instance = instances[what.number]
        given = node.args[0]
        if what.part == FORWARD:
            keys = dict(zip(instance.template.takes, given, strict=True))
            env = copies[what.number] = _placed(instance.template, keys)
        else:
            env = copies[what.number]
            env |= _placed(instance.template, _tangents(instance.template, given))
        _copy(module, node, what, instance, env, constants)
        _connect(module, node, what, instance.template, env)


def _placed(template: Template, keys: Mapping[Key, Node]) -> dict[Node, Node]:
    return {node: keys[key] for node, key in template.placeholders.items() if key in keys}


def _tangents(template: Template, given: list[Node]) -> dict[Key, Node]:
    order = sorted(key for key in template.placeholders.values() if key[0] == "grad")
    return dict(zip(order, given, strict=True))


def _copy(
    module: GraphModule,
    place: Node,
    what: Standing,
    instance: PastedInstance,
    env: dict[Node, Node],
    constants: dict[tuple[int, str], str],
) -> None:
    """Paste the operations of one part before `place`."""
    backward = what.part != FORWARD
    with module.graph.inserting_before(place):
        for node in instance.template.module.graph.nodes:
            if node.op in ("placeholder", "output") or torch_api.is_backward(node) != backward:
                continue
            if node.op == "get_attr":
                name = _constant(module, instance.template.module, str(node.target), constants)
                new = module.graph.create_node("get_attr", name)  # Graph.get_attr warns of constants
            else:
                new = module.graph.node_copy(node, env.__getitem__)
            env[node] = new
            new.meta = _meta(node.meta, what.number, instance.path)


def _constant(module: GraphModule, source: GraphModule, name: str, constants: dict[tuple[int, str], str]) -> str:
    key = id(source), name
    if key not in constants:
        constants[key] = f"_constant_of_a_block_{len(constants)}"
        setattr(module, constants[key], getattr(source, name))
    return constants[key]


def _meta(meta: Mapping[str, Any], number: int, path: str) -> dict[str, Any]:
    """The metadata of an operation in the block at `path`."""
    copied = dict(meta)
    if "seq_nr" in copied:
        copied["seq_nr"] = (number, copied["seq_nr"])
    torch_api.moved(copied, PATH, path)
    return copied


def _connect(module: GraphModule, place: Node, what: Standing, template: Template, env: dict[Node, Node]) -> None:
    """Let readers of `place` read the results of the block, and erase `place`."""
    forward = what.part == FORWARD
    results = template.outputs if forward else tuple(template.grads.values())
    for user in list(place.users):
        if user.target is not operator.getitem:
            raise UnlikeError("a list of tensors has another use")
        at = user.args[1]
        assert isinstance(at, int)
        result = env[results[at]]
        if not forward:
            _refuse_other_order(user)
        user.replace_all_uses_with(result)
        module.graph.erase_node(user)
    module.graph.erase_node(place)


def _refuse_other_order(grad: Node) -> None:
    """Refuse sums of a block's gradients with others. Autograd sums in order of arrival within the block's backward:
    (a + b1) + b2 for b1 and b2 of one block. A sum afterwards would round differently."""
    for user in grad.users:
        is_sum = user.target is torch.ops.aten.add.Tensor and torch_api.sequence(user) is None
        if is_sum and user.args[0] is not grad:
            raise UnlikeError("its gradient is added to another")
