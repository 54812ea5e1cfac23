"""One training step under autograd, whatever engine executes it.

To autograd the whole step is one node whose inputs are the differentiable parameters and inputs; hooks, accumulation,
clipping, GradScaler and DistributedDataParallel see ordinary gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..errors import ExecutionError
from ..format.tensor_type import TensorType
from ..kernels.overloads import TORCH_DTYPES, empty, laid_out
from ..link.contract import StepContract
from .compiled_step import CompiledStep

_TWICE = (
    "backward ran a second time through the same forward; its values are gone"
    "\n  run forward again before each backward; for several losses add them and call backward once"
)


class StepFunction(NamedTuple):
    """A step that is ready to run on a device."""

    compiled: CompiledStep
    contract: StepContract
    device: torch.device


class _Frame:
    """What one forward leaves for its backward. Holds no tensor that knows its autograd node: no reference cycle."""

    __slots__ = ("residue", "sources", "step", "tangents", "watched")

    def __init__(self, step: StepFunction, sources: Sequence[torch.Tensor]) -> None:
        self.step = step
        self.sources: Sequence[torch.Tensor] = sources  # until forward has run
        self.residue: Any = None
        self.watched: list[tuple[torch.Tensor, int, str]] = []
        self.tangents: list[torch.Tensor | None] = []

    def receive(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[None, ...]:
        """Take the tangents over from autograd's node, which would hold them until all of backward has run."""
        self.tangents = list(gradients)
        return (None,) * len(gradients)


def run_step(step: StepFunction, sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Run the step's forward on inputs, parameters and buffers (the contract's sources). Returns the contract's outputs.

    If gradients are wanted the tensors carry autograd history; otherwise nothing is kept.
    """
    if torch.is_grad_enabled():
        arguments = [sources[gradient.source] for gradient in step.contract.gradients]
        if any(argument.requires_grad for argument in arguments):
            frame = _Frame(step, sources)
            made = _Step.apply(frame, *arguments)
            node = next((t.grad_fn for t in made if t.grad_fn is not None), None)
            if node is not None:
                node.register_prehook(frame.receive)
            return made
    with torch.no_grad():
        made = step.compiled.inference(sources)
        _update(step.contract, sources, made.updates)
        return made.outputs


def _forward(frame: _Frame) -> list[torch.Tensor]:
    contract, sources = frame.step.contract, frame.sources
    made = frame.step.compiled.forward(sources)
    _update(contract, sources, made.updates)
    held = [(sources[w.at], w.what) for w in contract.watched_sources]
    held += [(made.outputs[w.at], w.what) for w in contract.watched_outputs]
    frame.watched = [(tensor, _version(tensor), what) for tensor, what in held]
    frame.sources, frame.residue = (), made.residue
    # An alias per output gets the autograd history; the engine's tensor shares storage and version with it.
    return [output.detach() for output in made.outputs]


def _update(contract: StepContract, sources: Sequence[torch.Tensor], updates: list[torch.Tensor]) -> None:
    for (buffer, _), new in zip(contract.updates, updates, strict=True):
        sources[buffer].copy_(new)


def _backward(frame: _Frame, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    contract, residue = frame.step.contract, frame.residue
    if residue is None:
        raise ExecutionError(_TWICE)
    frame.residue = None
    if torch.is_grad_enabled():
        raise ExecutionError(
            "a schedule has no second derivatives (create_graph=True)\n  use the original model for double backward"
        )
    _check_unchanged(frame)
    given, tangents = _take_tangents(frame)
    gradients = frame.step.compiled.backward(residue, tangents)
    return [
        (gradient.clone() if promised.shared else gradient) if want and promised.depends(given) else None
        for promised, gradient, want in zip(contract.gradients, gradients, wanted, strict=True)
    ]


def _check_unchanged(frame: _Frame) -> None:
    """Raise ExecutionError for a tensor that was written to. Lets go of all of them: backward frees them one by one."""
    watched, frame.watched = frame.watched, []
    for tensor, version, what in watched:
        if _version(tensor) != version:
            raise ExecutionError(
                f"{what} was modified in place between forward and backward (version {_version(tensor)}, expected "
                f"{version})\n  modify it after backward (optimizer steps too), or give the step a clone of it"
            )


def _take_tangents(frame: _Frame) -> tuple[set[int], list[torch.Tensor]]:
    """The tangents that backward reads, as it reads them; and the values of those that were given."""
    arrived, frame.tangents = frame.tangents, []
    given: set[int] = set()
    tangents: list[torch.Tensor] = []
    for tangent in frame.step.contract.tangents:
        if arrived[tangent.output] is not None:
            given.add(tangent.value)
        tangents.append(_tangent(arrived[tangent.output], tangent.type, frame.step.device))
        arrived[tangent.output] = None
    return given, tangents


def _tangent(given: torch.Tensor | None, type_: TensorType, device: torch.device) -> torch.Tensor:
    """The gradient of an output in the layout that the backward operations were recorded with; zeros for none."""
    if given is None:
        return empty(type_, device).zero_()
    if (
        given.dtype is TORCH_DTYPES[type_.dtype]
        and laid_out(given, type_)
        and not given.is_conj()
        and not given.is_neg()
    ):
        return given.detach()
    return empty(type_, device).copy_(given)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, frame: _Frame, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        outputs = _forward(frame)
        ctx.frame = frame
        flat = [t for t, output in zip(outputs, frame.step.contract.outputs, strict=True) if not output.grad]
        ctx.mark_non_differentiable(*flat)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *_backward(ctx.frame, ctx.needs_input_grad[1:]))
