"""Several outputs of a step, and the hooks on their gradients.

Each output has its own autograd node, so that its hooks run only if it receives a gradient. If the model computes
`loss` from `features`, the gradient of `loss` passes through `features`: hooks on `features` see it and may change it,
and `features.retain_grad()` keeps it. To autograd a schedule's step is a single operation, so both would miss it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import ExecutionError
from ..link.contract import StepContract
from .saved_hooks import of_torch


class InnerOutput(NamedTuple):
    """A tensor that the caller has, and the tangents of the outputs that depend on it."""

    tensor: Callable[[], torch.Tensor | None]
    name: str
    reached_by: frozenset[int]


class _Own(torch.autograd.Function):
    """Passes a gradient on to the step."""

    @staticmethod
    def forward(ctx: Any, value: list[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return value[0].detach()  # in a list, so that the result is not a view of an input and may be written into

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        return None, gradients[0]


def separate(contract: StepContract, values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the outputs of a step, each with its own autograd node if several have a gradient."""
    if sum(output.grad for output in contract.outputs) < 2:
        return values
    own: Any = _Own  # torch declares `apply` without types
    return [
        own.apply([value], value) if output.grad else value
        for value, output in zip(values, contract.outputs, strict=True)
    ]


def inner_outputs(contract: StepContract, returned: Sequence[torch.Tensor]) -> list[InnerOutput]:
    """Return the outputs to check when backward begins.

    Args:
        contract: The step's contract.
        returned: What the caller receives, in the order of the contract's outputs.
    """
    return [
        InnerOutput(weakref.ref(returned[at]), contract.outputs[at].name, tangents) for at, tangents in contract.inner
    ]


def refuse_watched(outputs: Sequence[InnerOutput], given: set[int]) -> None:
    """Raise ExecutionError if the caller uses the gradient of an output that a schedule does not compute.

    Args:
        outputs: The result of `inner_outputs`.
        given: The tangents of the outputs that received a gradient.
    """
    for output in outputs:
        tensor = output.tensor()
        if tensor is None or output.reached_by.isdisjoint(given):
            continue
        hooked = any(not _of_torch(hook) for hook in (tensor._backward_hooks or {}).values())
        if hooked or tensor.retains_grad:
            what = "a gradient hook" if hooked else "retain_grad()"
            raise ExecutionError(
                f"the output {output.name!r} has {what}, and other outputs, which the model makes from it, got a "
                "gradient: it passes through that output in the model, and not in a schedule\n  return the tensor "
                "alone and compute the rest outside of the scheduled model, plan the parts before and after it "
                "(at=...), or use the original model"
            )


def _of_torch(hook: object) -> bool:
    """Return whether a hook is torch's own and changes nothing: FSDP adds one to every output."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return of_torch(hook)
