"""Traces a block individually, on tensors like those that it receives in its place."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import torch
from torch import nn
from torch.fx import GraphModule, Node

from remate_runtime.format import PRESERVE
from remate_runtime.torch_private.execution import DisableTorchFunction
from remate_runtime.torch_private.pytree import tree_map_only

from .. import torch_api, trees
from ..step import TracedModule
from ..torch_api import BUFFER, GRADIENT, INPUT, MUTATION, OUTPUT, PARAMETER, Traced
from .alike import CallBlock, form
from .errors import UnlikeError
from .opaque import BACKWARD, FORWARD, STANDS_FOR, TANGENT, BlockParts, Laid, of_layout, standing, tangent_layout, text
from .recording import AUTOCAST, CallRecorder
from .specs import GRAD, Tensor, layout, tensors

PATH = "block"  # name of the block in the traced module
_OWN, _IN = "own", "in"
Key = tuple[str, Any]


class Template(msgspec.Struct, frozen=True):
    """A traced block.

    Attributes:
        module: The joint graph.
        placeholders: (own, name), (in, index) or (grad, index) of each placeholder.
        outputs: Nodes of the outputs.
        grads: Nodes of the gradients, by placeholder.
        takes: The inputs of the opaque block, in order.
    """

    module: GraphModule
    placeholders: dict[Node, Key]
    outputs: tuple[Node, ...]
    grads: dict[Key, Node]
    plain: tuple[int, ...]
    takes: tuple[Key, ...]

    def parts(self, number: int) -> BlockParts:
        """Return the opaque parts of the block with this number."""
        outputs = [node.meta["val"] for node in self.outputs]
        grads = list(self.grads)
        tangents = {key[1]: node.meta["val"] for node, key in self.placeholders.items() if key[0] == "grad"}
        return BlockParts(
            number,
            text(number, FORWARD, outputs),
            text(number, BACKWARD, [self.grads[key].meta["val"] for key in grads]),
            self.plain,
            tuple(tangent_layout(tangents[at]) for at in sorted(tangents)),
            tuple(grads.index(key) if key in self.grads else None for key in self.takes),
        )


class _Alone(nn.Module):
    """Calls the forward of one module and returns its tensors. Unused outputs have no gradient. Its arguments are not
    leaves of the step, whose casts autocast caches. laid: texts of gradients of outputs, by index; others have the
    layout of the trace."""

    def __init__(self, block: CallBlock, laid: Mapping[int, str]) -> None:
        super().__init__()
        self.block = block.call.module
        self._of, self._laid = block, laid
        self.traced: TracedModule | None = None

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        assert self.traced is not None
        watch, recorder = self.traced.watch, CallRecorder()
        args, kwargs = tree_map_only(torch.Tensor, torch.ops.aten.alias.default, (args, kwargs))
        with watch.followed_by(recorder), watch.within(PATH, self._of.call.caller), self._cast():
            with DisableTorchFunction():
                call = recorder.entered(self.block, PATH, args, kwargs)
            outputs = self.block.forward(*args, **kwargs)
        with DisableTorchFunction():
            recorder.left(call, outputs, recorder.written)
            call_form = form(call, recorder.events)
            if call_form is None or call_form.key != self._of.form.key:
                raise UnlikeError("it does something else on its own")
            leaves = recorder.tensors(call_form.outputs)
            outputs = (t if used else t.detach() for t, used in zip(leaves, self._of.used, strict=True))
            laid: Any = Laid  # torch declares no types
            return tuple(laid.apply(t, self._laid[at]) if at in self._laid else t for at, t in enumerate(outputs))

    @contextmanager
    def _cast(self) -> Generator[None]:
        """Enter the modes at the block's place."""
        with ExitStack() as stack:
            for kind, dtype in zip(AUTOCAST, self._of.modes.casts, strict=True):
                if dtype is not None:
                    stack.enter_context(torch.autocast(kind, dtype, cache_enabled=self._of.modes.cache))
            yield


def template(block: CallBlock, mode: Any, layouts: tuple[Any, ...] = ()) -> Template:
    """Trace `block` individually. layouts: of the gradients that it receives, if known. Raises UnlikeError if it
    differs from its run in its place, and any exception of the tracer."""
    args, kwargs = block.call.tensors
    differ = [t.layout[GRAD] and used for t, used in zip(_outputs(block), block.used, strict=True)]
    given = [at for at, differs in enumerate(differ) if differs]
    alone = _Alone(block, dict(zip(given, map(of_layout, layouts), strict=True)) if layouts else {})
    names = [f"{at}:{PRESERVE}" for at in given]  # within a step, gradients arrive as forward leaves them
    step = TracedModule(alone, args, kwargs, names, None)
    alone.traced = step
    leaves = [_like(layout(tensor), mode) for tensor in trees.tensors((args, kwargs))]
    traced = torch_api.joint(step, leaves)
    return _read(_without_layout_nodes(traced) if layouts else traced, block, differ)


def _like(kind: tuple[Any, ...], mode: Any) -> torch.Tensor:
    """Make a tensor of `mode` with this layout."""
    shape, strides, offset, dtype, device, grad, *_ = kind
    with mode:
        whole = torch.empty(
            offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)), dtype=dtype, device=device
        )
        return whole.as_strided(shape, strides, offset).requires_grad_(grad)


def _outputs(block: CallBlock) -> list[Tensor]:
    by_number = {tensor.number: tensor for tensor in tensors(block.call.result)}
    return [by_number[number] for number in block.form.outputs]


def _without_layout_nodes(traced: Traced) -> Traced:
    """Replace a node that describes the layout of a gradient by the gradient."""
    graph = traced.module.graph
    for node in graph.find_nodes(op="call_function", target=STANDS_FOR):
        (given,) = node.args[0]
        user = next(iter(node.users), None)
        if standing(node.args[1]).part != TANGENT or given.op != "placeholder" or len(node.users) > 1:
            raise UnlikeError("a gradient passes through another operation before it")
        if user is not None:
            given.meta["val"] = user.meta["val"]
            user.replace_all_uses_with(given)
            graph.erase_node(user)
        graph.erase_node(node)
    return torch_api.read(traced.module)


def _read(traced: Traced, block: CallBlock, differ: list[bool]) -> Template:
    def key(port: Any) -> Key:
        if port.kind in (PARAMETER, BUFFER):
            return _OWN, port.key.removeprefix(f"model.{PATH}.")
        return (_IN, port.key) if port.kind == INPUT else ("grad", port.key)

    graph = traced.module.graph
    placeholders = {node: key(traced.inputs[node.name]) for node in graph.find_nodes(op="placeholder")}
    outputs: dict[int, Node] = {}
    grads: dict[Key, Node] = {}
    for port, node in traced.outputs:
        if port.kind == MUTATION:
            raise UnlikeError("it writes into a tensor")
        if node is not None and port.kind == OUTPUT:
            outputs[port.key] = _bare(node)
        if node is not None and port.kind == GRADIENT:
            grads[key(port.key)] = node
    results = tuple(outputs[at] for at in range(len(block.form.outputs)))
    if any(node.op == "placeholder" for node in results):
        raise UnlikeError("it returns what it is given")
    for node, kind in zip(results, _outputs(block), strict=True):
        if layout(node.meta["val"])[:5] != kind.layout[:5]:
            raise UnlikeError("its outputs have a different memory layout")
    takes = [(_OWN, name) for name, _, _ in block.call.own.values()]
    takes += [(_IN, at) for at in range(len(block.form.inputs))]
    if not {key for key in placeholders.values() if key[0] != "grad"} <= set(takes):
        raise UnlikeError("it has other inputs on its own")
    plain = tuple(at for at, differs in enumerate(differ) if not differs)
    return Template(traced.module, placeholders, results, grads, plain, tuple(takes))


def _bare(node: Node) -> Node:
    """The output below the clone and the detach that TracedModule added."""
    if node.target is torch.ops.aten.clone.default and isinstance(node.args[0], Node):
        node = node.args[0]
    while node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
        below = node.args[0]
        assert isinstance(below, Node)
        node = below
    return node
