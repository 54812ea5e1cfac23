"""The joint graph of a step, its repeated blocks traced once.

A trace runs forward twice; what it asks of torch is recorded the first time. Where most of it are calls of modules that
ask the same as others, the trace is given up then. One block of each kind is traced individually, and must ask the same
there; the step is traced with a node for each block, the rest of forward must ask what it asked before; and the blocks'
graphs take the places of the nodes. Wherever anything differs the whole step is traced as it is.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from .. import torch_api
from ..branches import Branches
from ..step import TracedModule
from ..torch_api import Traced
from .alike import CallBlock
from .candidates import candidates
from .errors import OtherLayoutError, UnlikeError
from .first_run import Repeats, recorded
from .opaque import BlockParts, OpaqueBlock
from .pasting import PastedInstance, paste
from .recording import replaced_forwards
from .specs import layout, renamed, spec, value
from .template import Template, template

_TRIES = 4  # templates for gradients that have a different memory layout
_log = logging.getLogger(__name__)


def traced(step: TracedModule, leaves: list[torch.Tensor], branches: Branches) -> Traced:
    """The joint graph of `step(*leaves)`. May raise anything that torch does."""
    step.recorded = None
    mode = torch_api.mode_of(step, leaves)
    with torch_api.tracing(mode, branches, step.has_live, step.stepwise):
        fakes = [torch_api.fake(leaf, mode) for leaf in leaves]
        modules = {} if step.has_live or branches.learned or step.distributed else candidates(step.model)
        if not modules:
            return torch_api.joint(step, fakes)
        try:
            with recorded(step, modules):
                return torch_api.joint(step, fakes)
        except Repeats as repeats:
            found = repeats
        return _with_blocks(step, fakes, mode, found) or torch_api.joint(step, fakes)


def _with_blocks(step: TracedModule, fakes: list[torch.Tensor], mode: Any, repeats: Repeats) -> Traced | None:
    """None where what repeats cannot be shown to."""
    try:
        with warnings.catch_warnings():  # tracing finds anomalies, and would report an UnlikeError in backward
            warnings.filterwarnings("ignore", message="Error detected in OpaqueBlockBackward")
            return _pasted(step, fakes, mode, repeats)
    except Exception as error:  # tracing the whole step says what is wrong
        _log.debug("blocks that repeat are traced one by one: %s", error, exc_info=True)
        step.watch.forget()
        return None


def _pasted(step: TracedModule, fakes: list[torch.Tensor], mode: Any, repeats: Repeats) -> Traced:
    kinds = _Kinds(repeats, mode)
    if not kinds.blocks:
        raise UnlikeError("no block can be traced individually")
    decisions = None if step.sizes is None else list(step.sizes.decisions)
    told = step.tree, step.outputs, step.opaque, step.lost
    step.watch.expect_without(sorted((block.call.start, block.call.end) for block in kinds.blocks))
    for left in range(_TRIES, -1, -1):
        try:
            found = _around(step, fakes, kinds)
            break
        except OtherLayoutError as error:
            if not left:
                raise
            kinds.lay_out(error.number, error.layouts)
    if told != (step.tree, step.outputs, step.opaque, step.lost):
        raise UnlikeError("forward returns something else")
    if step.sizes is not None and decisions is not None:
        step.sizes.decisions[:] = decisions
    paste(found.module, dict(enumerate(kinds.instances)))
    return torch_api.read(found.module)


def _around(step: TracedModule, fakes: list[torch.Tensor], kinds: _Kinds) -> Traced:
    """The step, with nodes in the places of blocks."""
    pairs = enumerate(zip(kinds.blocks, kinds.instances, strict=True))
    places = {block.call.path: (block, made.template.parts(number)) for number, (block, made) in pairs}
    modules = {path: block.call.module for path, (block, _) in places.items()}
    with replaced_forwards(modules, lambda path, module, forward: _fake_module(*places[path])):
        return torch_api.joint(step, fakes)


class _Kinds:
    """The blocks that can be traced on its own, and the template of each. A block's number is its place among them."""

    def __init__(self, repeats: Repeats, mode: Any) -> None:
        self._mode = mode
        self._made: dict[tuple[int, Any], Template] = {}
        self._of: list[list[CallBlock]] = []  # by number: all of its kind
        self.blocks: list[CallBlock] = []
        self.instances: list[PastedInstance] = []
        for kind in repeats.kinds:
            made = _template(kind[0], mode)
            if made is None:
                continue
            for block in kind:
                self._of.append(kind)
                self.blocks.append(block)
                self.instances.append(PastedInstance(made, block.call.path))

    def lay_out(self, number: int, layouts: tuple[Any, ...]) -> None:
        """From here on down, towards what backward comes to later, blocks of one kind are given gradients with
        `layouts`; as far as is known by now."""
        kind = self._of[number]
        key = id(kind), layouts
        if key not in self._made:
            self._made[key] = template(kind[0], self._mode, layouts)
        for at in range(number + 1):
            if self._of[at] is kind:
                self.instances[at] = PastedInstance(self._made[key], self.blocks[at].call.path)


def _template(block: CallBlock, mode: Any) -> Template | None:
    try:
        return template(block, mode) if block.modes.grads else None
    except Exception as error:
        _log.debug("%s cannot be traced individually: %s", block.call.path, error, exc_info=True)
        return None


def _fake_module(block: CallBlock, parts: BlockParts) -> Any:
    """A forward that makes one node of the block."""
    form = block.form
    wanted = renamed(block.call.given, lambda tensor: ("tensor", tensor.layout))

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            given: list[torch.Tensor] = []

            def seen(tensor: torch.Tensor) -> Any:
                given.append(tensor)
                return "tensor", layout(tensor)

            found = spec((args, kwargs), seen)
            if found != wanted or len(given) != len(form.inputs):
                raise UnlikeError("it is given something else")
            module = block.call.module
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            made = OpaqueBlock.apply(parts, *(own[name] for name, _, _ in block.call.own.values()), *given)
            tensors = dict(zip(form.outputs, made, strict=True)) | dict(zip(form.inputs, given, strict=True))
            return value(form.made, lambda tensor: tensors[tensor.number])

    return run
