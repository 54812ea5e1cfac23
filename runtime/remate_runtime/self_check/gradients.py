"""Compares a step with backward of the model and of the schedule.

Only backward shows the effects of custom Functions, hooks on tensors, and hooks on saved tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ..bind.distributed import local_tensor
from .checksum import Checksums
from .comparison import Difference, Tolerance, gradient_differences
from .generators import Generators
from .live_forward import shielded, uncached
from .outcome import Noted, noted, tensors_in
from .program import Program
from .snapshot import Snapshot

Gradients = dict[str, Noted | None]


def compared_gradients(
    program: Program, checksums: Checksums, tolerance: Tolerance, keep: bool
) -> Iterator[Difference]:
    """Yield differences between the gradients of the schedule and of the model.

    Everything is restored; `.grad` is neither read nor written.

    Args:
        program: The call.
        checksums: Computes checksums.
        tolerance: The allowed difference.
        keep: Keep the model's gradients during the schedule's step, so that differences can be measured.
    """
    model, args, kwargs = program.model, program.args, program.kwargs
    live = gradients_of(program, lambda: model.forward(*args, **kwargs), checksums, keep)
    scheduled = gradients_of(program, program.run, checksums, keep)
    yield from gradient_differences(live, scheduled, tolerance)


def gradients_of(program: Program, forward: Callable[[], object], checksums: Checksums, keep: bool) -> Gradients:
    """Return the gradients of a step for everything in the call that has one."""
    inputs = {f"input {at}": t for at, t in enumerate(tensors_in((program.args, program.kwargs))) if t.requires_grad}
    wanted = {**{name: t for name, t in program.trained.items() if t.requires_grad}, **inputs}
    start = Generators.now()
    snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
    try:
        with uncached(), shielded():
            outcome = forward()
        outputs = tensors_in(outcome)
        planned = program.differentiated or [True] * len(outputs)
        chosen = [t for t, grad in zip(outputs, planned, strict=False) if grad and t.requires_grad]
        del outcome, outputs
        with torch.autocast(program.device.type, enabled=False):
            gradients = _backward(chosen, [*wanted.values()])
        return {
            name: None if gradient is None else noted(local_tensor(gradient), checksums, keep)
            for name, gradient in zip(wanted, gradients, strict=True)
        }
    finally:
        snapshot.restore(checksums)
        start.restore()


def _backward(outputs: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor | None]:
    if not outputs or not wanted:
        return [None] * len(wanted)
    return list(torch.autograd.grad(outputs, wanted, [_tangent(t) for t in outputs], allow_unused=True))


def _tangent(output: torch.Tensor) -> torch.Tensor:
    """Return a gradient of an output whose elements all differ, so that a permutation is detected."""
    ramp = torch.linspace(0.5, 1.5, max(1, output.numel()), dtype=torch.float64, device=output.device)[: output.numel()]
    return torch.empty_like(output).copy_(ramp.view(output.shape))
