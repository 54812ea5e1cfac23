"""Traces the joint graph of a step, with equal blocks traced once.

A trace runs forward twice. The first run is recorded. If most of it are calls of equal modules, that trace ends. One
block of each kind is traced individually, and must make the recorded calls; the step is traced with a node for each
block, and the rest of forward must make the recorded calls; then the blocks' graphs replace the nodes. If anything
differs, the whole step is traced.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from remate_runtime.torch_private.execution import DisableTorchFunction

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
    """Return the joint graph of `step(*leaves)`. It may raise any exception of torch."""
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
            kinds = repeats
        return _with_blocks(step, fakes, mode, kinds) or torch_api.joint(step, fakes)


def _with_blocks(step: TracedModule, fakes: list[torch.Tensor], mode: Any, repeats: Repeats) -> Traced | None:
    """Trace with opaque blocks. Returns None if the blocks turn out to differ."""
    try:
        with warnings.catch_warnings():  # tracing finds anomalies, and would report an UnlikeError in backward
            warnings.filterwarnings("ignore", message="Error detected in OpaqueBlockBackward")
            return _pasted(step, fakes, mode, repeats)
    except Exception as error:  # tracing the whole step reports the reason
        _log.debug("blocks that repeat are traced one by one: %s", error, exc_info=True)
        step.watch.forget()
        return None


def _pasted(step: TracedModule, fakes: list[torch.Tensor], mode: Any, repeats: Repeats) -> Traced:
    kinds = _Kinds(repeats, mode)
    if not kinds.blocks:
        raise UnlikeError("no block can be traced individually")
    decisions = None if step.sizes is None else list(step.sizes.decisions)
    described = step.tree, step.outputs, step.opaque, step.lost
    step.watch.expect_without(sorted((block.call.start, block.call.end) for block in kinds.blocks))
    traced = _laid_out(step, fakes, kinds)
    if described != (step.tree, step.outputs, step.opaque, step.lost):
        raise UnlikeError("forward returns something else")
    if step.sizes is not None and decisions is not None:
        step.sizes.decisions[:] = decisions
    paste(traced.module, dict(enumerate(kinds.instances)))
    return torch_api.read(traced.module)


def _laid_out(step: TracedModule, fakes: list[torch.Tensor], kinds: _Kinds) -> Traced:
    """Trace the step with opaque blocks, and with the layouts that their gradients have."""
    for _ in range(_TRIES):
        try:
            return _around(step, fakes, kinds)
        except OtherLayoutError as error:
            kinds.lay_out(error.number, error.layouts)
    return _around(step, fakes, kinds)


def _around(step: TracedModule, fakes: list[torch.Tensor], kinds: _Kinds) -> Traced:
    """Trace the step with opaque blocks."""
    pairs = enumerate(zip(kinds.blocks, kinds.instances, strict=True))
    places = {block.call.path: (block, pasted.template.parts(number)) for number, (block, pasted) in pairs}
    modules = {path: block.call.module for path, (block, _) in places.items()}
    with replaced_forwards(modules, lambda path, module, forward: _fake_module(*places[path])):
        return torch_api.joint(step, fakes)


class _Kinds:
    """The blocks that can be traced individually, and their templates. A block's number is its index."""

    def __init__(self, repeats: Repeats, mode: Any) -> None:
        self._mode = mode
        self._templates: dict[tuple[int, Any], Template] = {}
        self._of: list[list[CallBlock]] = []  # by number: all blocks of its kind
        self.blocks: list[CallBlock] = []
        self.instances: list[PastedInstance] = []
        for kind in repeats.kinds:
            template = _template(kind[0], mode)
            if template is None:
                continue
            for block in kind:
                self._of.append(kind)
                self.blocks.append(block)
                self.instances.append(PastedInstance(template, block.call.path))

    def lay_out(self, number: int, layouts: tuple[Any, ...]) -> None:
        """Use gradients with `layouts` for this block and the blocks of its kind before it, which backward reaches
        later."""
        kind = self._of[number]
        key = id(kind), layouts
        if key not in self._templates:
            self._templates[key] = template(kind[0], self._mode, layouts)
        for at in range(number + 1):
            if self._of[at] is kind:
                self.instances[at] = PastedInstance(self._templates[key], self.blocks[at].call.path)


def _template(block: CallBlock, mode: Any) -> Template | None:
    try:
        return template(block, mode) if block.modes.grads else None
    except Exception as error:
        _log.debug("%s cannot be traced individually: %s", block.call.path, error, exc_info=True)
        return None


def _fake_module(block: CallBlock, parts: BlockParts) -> Any:
    """Return a forward that traces the block as one node."""
    form = block.form
    wanted = renamed(block.call.given, lambda tensor: ("tensor", tensor.layout))

    def run(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunction():
            given: list[torch.Tensor] = []

            def seen(tensor: torch.Tensor) -> Any:
                given.append(tensor)
                return "tensor", layout(tensor)

            called = spec((args, kwargs), seen)
            if called != wanted or len(given) != len(form.inputs):
                raise UnlikeError("it receives other arguments")
            module = block.call.module
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            opaque: Any = OpaqueBlock  # torch declares no types
            outputs = opaque.apply(parts, *(own[name] for name, _, _ in block.call.own.values()), *given)
            tensors: dict[int, torch.Tensor] = dict(zip(form.outputs, outputs, strict=True))
            tensors |= zip(form.inputs, given, strict=True)
            return value(form.result, lambda tensor: tensors[tensor.number])

    return run
