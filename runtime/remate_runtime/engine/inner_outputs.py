"""Several outputs of one step: what a caller hangs on their gradients.

Each has an autograd node of its own, so that its hooks run only if it got a gradient. In the model the gradient of
`loss` passes through `features`, if `loss` is made of them: hooks on `features` see it and may change it, and
`features.retain_grad()` keeps it. A schedule's step is one operation to autograd, so that both miss it.
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
    """A tensor that the caller has, and the tangents of the outputs that are made from it."""

    tensor: Callable[[], torch.Tensor | None]
    name: str
    reached_by: frozenset[int]


class _Own(torch.autograd.Function):
    """Hands a gradient on to the step."""

    @staticmethod
    def forward(ctx: Any, value: list[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return value[0].detach()  # in a list, so that the result is no view of an input: it may be written into

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        return None, gradients[0]


def separate(contract: StepContract, values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The outputs of a step, each with an autograd node of its own if several have a gradient."""
    if sum(output.grad for output in contract.outputs) < 2:
        return values
    return [
        _Own.apply([value], value) if output.grad else value
        for value, output in zip(values, contract.outputs, strict=True)
    ]


def inner_outputs(contract: StepContract, returned: Sequence[torch.Tensor]) -> list[InnerOutput]:
    """The outputs to look at when backward begins. returned: what the caller gets, in the order of the contract's
    outputs."""
    return [
        InnerOutput(weakref.ref(returned[at]), contract.outputs[at].name, tangents) for at, tangents in contract.inner
    ]


def refuse_watched(inner: Sequence[InnerOutput], given: set[int]) -> None:
    """Raise ExecutionError if somebody watches the gradient of an output which a schedule does not compute.

    given: the tangents of the outputs that got a gradient.
    """
    for output in inner:
        tensor = output.tensor()
        if tensor is None or output.reached_by.isdisjoint(given):
            continue
        hooked = any(not _of_torch(hook) for hook in (tensor._backward_hooks or {}).values())
        if hooked or tensor.retains_grad:
            what = "a gradient hook" if hooked else "retain_grad()"
            raise ExecutionError(
                f"the output {output.name!r} has {what}, and other outputs, which the model makes from it, got a "
                "gradient: it "
                "passes through that output in the model, and not in a schedule\n  return the tensor alone and "
                "compute the rest "
                "outside of the scheduled model, plan the parts before and after it (at=...), or use the original model"
            )


def _of_torch(hook: Any) -> bool:
    """Whether it is one of torch's own, which look and change nothing: FSDP puts one on every output."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return of_torch(hook)
