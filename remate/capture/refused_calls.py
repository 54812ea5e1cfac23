"""Calls that tracing would drop, or replace by their present value."""

from __future__ import annotations

from typing import Any

import torch

_Tensor: Any = torch.Tensor
_torch: Any = torch
_GRAD = (
    "`.grad` of a tensor",
    "a schedule would repeat its value at planning: pass it as an input, or keep it in a buffer",
)
ASSIGNS_DATA = "forward assigns `.data`"
_REFUSED: dict[Any, tuple[str, str, str]] = {
    _Tensor.data.__set__: (
        "assigns",
        "`.data` of a tensor",
        "write into the tensor (buffer.copy_(new)), or compute with the new tensor; set parameters outside of forward",
    ),
    _Tensor.grad.__get__: ("reads", *_GRAD),
    _Tensor.grad.__set__: ("assigns", *_GRAD),
    _Tensor.backward: ("calls", "backward()", "use torch.autograd.grad inside forward"),
    _Tensor.retain_grad: (
        "calls",
        "retain_grad() of a tensor, whose gradient a schedule does not keep",
        "plan the parts before and after it (at=[...]): the forward around them may call retain_grad() on what "
        "passes between",
    ),
    _torch._assert_async: (
        "calls",
        "torch._assert_async, which a schedule leaves out",
        "check values in the training loop, on what the model returns",
    ),
    torch.autograd.backward: ("calls", "backward()", "use torch.autograd.grad inside forward"),
}


def refusal(function: object) -> tuple[str, str] | None:
    """Return (message, hint) if no schedule can contain a call of this function."""
    reason = _REFUSED.get(function)
    return reason and (f"forward {reason[0]} {reason[1]}", reason[2])
