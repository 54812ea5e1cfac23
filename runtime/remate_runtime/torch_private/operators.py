"""Operators as objects: overloads, their kernels, and Python's bindings of them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["OpOverload", "OpOverloadPacket", "function_of", "has_kernel", "python_binding", "schema_of"]


def has_kernel(operator: OpOverload, device: torch.device) -> bool:
    """Return whether the operator has a kernel for this kind of device, its own or a composite one."""
    key = "CUDA" if device.type == "cuda" else "CPU"
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), key)


def function_of(operator: OpOverload) -> Callable[..., Any]:
    """Return what runs the operator, without the Python frame of `OpOverload.__call__`."""
    return operator._op


def schema_of(operator: OpOverload) -> Any:
    """Return the operator's schema, with `arguments`, `returns` and `is_mutable`."""
    return operator._schema


def python_binding(name: str) -> Callable[..., Any] | None:
    """Return Python's binding of the operator `aten.NAME`, a function or a method; None if there is none."""
    bindings: Any = torch._C
    return getattr(bindings._VariableFunctions, name, None) or getattr(bindings.TensorBase, name, None)
