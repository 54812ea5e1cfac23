"""One step with backward, of the model and of the schedule, for what only backward shows: code of custom Functions,
hooks on tensors, hooks on saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .checksum import Checksums
from .comparison import Found, Tolerance, gradient_differences
from .generators import Generators
from .live_forward import shielded, uncached
from .outcome import Noted, noted, tensors_in
from .program import Program
from .snapshot import Snapshot

Gradients = dict[str, Noted | None]


def compared_gradients(program: Program, checksums: Checksums, tolerance: Tolerance, keep: bool) -> Iterator[Found]:
    """How gradients of the schedule differ from those of the model. Everything is left as it was; `.grad` is neither
    read nor written.

    Args:
        program: The call.
        checksums: Makes checksums.
        tolerance: How gradients may differ.
        keep: Keep the model's gradients while those of the schedule are made, so that differences can be measured.
    """
    model, args, kwargs = program.model, program.args, program.kwargs
    live = gradients_of(program, lambda: model.forward(*args, **kwargs), checksums, keep)
    made = gradients_of(program, program.run, checksums, keep)
    yield from gradient_differences(live, made, tolerance)


def gradients_of(program: Program, forward: Callable[[], Any], checksums: Checksums, keep: bool) -> Gradients:
    """The gradients of one step, of what the call has gradients for."""
    given = {f"input {at}": t for at, t in enumerate(tensors_in((program.args, program.kwargs))) if t.requires_grad}
    wanted = {**{name: t for name, t in program.trained.items() if t.requires_grad}, **given}
    start = Generators.now()
    snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
    try:
        with uncached(), shielded():
            made = forward()
        outputs = tensors_in(made)
        planned = program.differentiated or [True] * len(outputs)
        chosen = [t for t, grad in zip(outputs, planned, strict=False) if grad and t.requires_grad]
        del made, outputs
        with torch.autocast(program.device.type, enabled=False):
            found = _backward(chosen, [*wanted.values()])
        return {
            name: None if gradient is None else noted(gradient, checksums, keep)
            for name, gradient in zip(wanted, found, strict=True)
        }
    finally:
        snapshot.restore(checksums)
        start.restore()


def _backward(outputs: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor | None]:
    if not outputs or not wanted:
        return [None] * len(wanted)
    return list(torch.autograd.grad(outputs, wanted, [_tangent(t) for t in outputs], allow_unused=True))


def _tangent(output: torch.Tensor) -> torch.Tensor:
    """A gradient of an output whose elements all differ, so that no two of them can be confused."""
    made = torch.linspace(0.5, 1.5, max(1, output.numel()), dtype=torch.float64, device=output.device)[: output.numel()]
    return torch.empty_like(output).copy_(made.view(output.shape))
