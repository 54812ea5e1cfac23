"""Operators as objects: overloads, their kernels, and Python's bindings of them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["OpOverload", "OpOverloadPacket", "has_kernel", "python_binding"]


def has_kernel(operator: OpOverload, device: torch.device) -> bool:
    """Return whether the operator has a kernel for this kind of device, its own or a composite one."""
    key = "CUDA" if device.type == "cuda" else "CPU"
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), key)


def python_binding(name: str) -> Callable[..., Any] | None:
    """Return Python's binding of the operator `aten.NAME`, a function or a method; None if there is none."""
    bindings: Any = torch._C
    return getattr(bindings._VariableFunctions, name, None) or getattr(bindings.TensorBase, name, None)
