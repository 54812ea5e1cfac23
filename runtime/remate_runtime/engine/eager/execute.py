"""One training step of a prepared schedule under autograd.

Forward and backward are plain loops below autograd's dispatch keys: no graph is recorded, no version is counted, so a
value dies with its slot. To autograd the whole step is one node whose inputs are the differentiable parameters and
inputs; hooks, accumulation, clipping, GradScaler and DistributedDataParallel see ordinary gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ExecutionError
from ...format.tensor_type import TensorType
from ...kernels.overloads import TORCH_DTYPES, empty, laid_out
from .program import Instruction, Program, Slots

_TWICE = (
    "backward ran a second time through the same forward; its values are gone"
    "\n  run forward again before each backward; for several losses add them and call backward once"
)


class Leaf:
    """An output of the module: the slot of its value, the type of its gradient, the name of its tangent or None."""

    __slots__ = ("name", "tangent", "type", "value")

    def __init__(self, value: int, name: str, type_: TensorType, tangent: str | None) -> None:
        self.value, self.name, self.type, self.tangent = value, name, type_, tangent


class _Frame:
    """What one forward leaves for its backward. Holds no tensor that knows its autograd node: no reference cycle."""

    __slots__ = ("leaves", "program", "slots", "sources", "tangents", "watched")

    def __init__(self, program: Program, leaves: Sequence[Leaf], sources: Sequence[torch.Tensor]) -> None:
        self.program, self.leaves = program, leaves
        self.sources: Sequence[torch.Tensor] = sources  # until forward has run
        self.slots: Slots | None = filled(program, sources)
        self.watched: list[tuple[torch.Tensor, int, str]] = []
        self.tangents: list[torch.Tensor | None] = []

    def receive(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[None, ...]:
        """Take the tangents over from autograd's node, which would hold them until all of backward has run."""
        self.tangents = list(gradients)
        return (None,) * len(gradients)


def execute(program: Program, leaves: Sequence[Leaf], sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Run the step's forward on parameters, buffers and inputs (`program.sources`). Returns one tensor per leaf.

    If gradients are wanted the tensors carry autograd history; otherwise nothing is kept.
    """
    if torch.is_grad_enabled():
        arguments = [sources[gradient.position] for gradient in program.gradients]
        if any(argument.requires_grad for argument in arguments):
            frame = _Frame(program, leaves, sources)
            made = _Step.apply(frame, *arguments)
            node = next((t.grad_fn for t in made if t.grad_fn is not None), None)
            if node is not None:
                node.register_prehook(frame.receive)
            return made
    with torch.no_grad():
        return _forward_only(program, leaves, sources)


def filled(program: Program, sources: Sequence[torch.Tensor]) -> Slots:
    slots = program.empty.copy()
    for slot, tensor in zip(program.sources, sources, strict=True):
        slots[slot] = tensor
    return slots


def _forward_only(program: Program, leaves: Sequence[Leaf], sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    slots = filled(program, sources)
    _loop(program.inference, slots)
    _update(program, slots, sources)
    return [slots[leaf.value] for leaf in leaves]


def _forward(frame: _Frame) -> list[torch.Tensor]:
    program, slots = frame.program, frame.slots
    assert slots is not None
    _loop(program.forward, slots)
    # An alias per output gets the autograd history; the tensor in the slot shares storage and version with it.
    outputs = [slots[leaf.value].detach() for leaf in frame.leaves]
    for buffer in program.preserve:
        slots[buffer] = slots[buffer].clone()
    _update(program, slots, frame.sources)
    held = [(frame.sources[w.at], w.what) for w in program.watch] + [
        (slots[w.at], w.what) for w in program.watch_outputs
    ]
    frame.watched = [(tensor, _version(tensor), what) for tensor, what in held]
    frame.sources = ()
    for slot in program.free_at_turn:
        slots[slot] = None
    return outputs


def _update(program: Program, slots: Slots, sources: Sequence[torch.Tensor]) -> None:
    for position, value in program.updates:
        sources[position].copy_(slots[value])


def _backward(frame: _Frame, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    program, slots = frame.program, frame.slots
    if slots is None:
        raise ExecutionError(_TWICE)
    frame.slots = None
    if torch.is_grad_enabled():
        raise ExecutionError(
            "a schedule has no second derivatives (create_graph=True)\n  use the original model for double backward"
        )
    _check_unchanged(frame)
    given = _take_tangents(frame, slots)
    _loop(program.backward, slots)
    gradients: list[torch.Tensor | None] = [
        (slots[g.slot].clone() if g.copy else slots[g.slot]) if want and g.depends(given) else None
        for g, want in zip(program.gradients, wanted, strict=True)
    ]
    slots.clear()
    return gradients


def _check_unchanged(frame: _Frame) -> None:
    """Raise ExecutionError for a tensor that was written to. Lets go of all of them: backward frees them one by one."""
    watched, frame.watched = frame.watched, []
    for tensor, version, what in watched:
        if _version(tensor) != version:
            raise ExecutionError(
                f"{what} was modified in place between forward and backward (version {_version(tensor)}, expected "
                f"{version})\n  modify it after backward (optimizer steps too), or give the step a clone of it"
            )


def _take_tangents(frame: _Frame, slots: Slots) -> set[int]:
    """Put the tangents that backward reads into their slots. Returns the slots of those that were given."""
    tangents, frame.tangents = frame.tangents, []
    given: set[int] = set()
    for at, leaf in enumerate(frame.leaves):
        slot = frame.program.tangents.get(leaf.tangent or "")
        if slot is not None:
            if tangents[at] is not None:
                given.add(slot)
            slots[slot] = _tangent(tangents[at], leaf.type, frame.program.device)
        tangents[at] = None
    return given


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


def _loop(executions: Sequence[Instruction], slots: Slots) -> None:
    """The step. Autocast stays off: the casts that it made are operations of the schedule."""
    at = ""
    try:
        with torch._C._DisableAutocast(), torch._C._ExcludeDispatchKeyGuard(_ABOVE_KERNELS):
            for run, free, at in executions:  # noqa: B007 (the error's note reads `at`)
                run(slots)
                for slot in free:
                    slots[slot] = None
    except Exception as error:
        slots.clear()
        error.add_note(f"in operation {at!r} of the schedule")
        raise


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _above_kernels() -> torch._C.DispatchKeySet:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        keys = keys.add(getattr(torch._C.DispatchKey, key))
    return keys


_ABOVE_KERNELS = _above_kernels()


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, frame: _Frame, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        outputs = _forward(frame)
        ctx.frame = frame
        flat = [t for t, leaf in zip(outputs, frame.leaves, strict=True) if leaf.tangent is None]
        ctx.mark_non_differentiable(*flat)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *_backward(ctx.frame, ctx.needs_input_grad[1:]))
