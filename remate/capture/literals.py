"""Converts types and literals of a traced graph to those of a Graph."""

from __future__ import annotations

from typing import Any

import torch

from remate_runtime.format import DTYPES, MEMORY_FORMATS, TensorType
from remate_runtime.staleness import MAX_CONSTANT

from ..errors import CaptureError
from .trees import literal

_DTYPES = {getattr(torch, name): short for short, (name, _) in DTYPES.items() if hasattr(torch, name)}
_BIG = (
    "register it as a buffer of the module (register_buffer(..., persistent=False)): buffers are not stored in the file"
)
_DENSE = (
    "use dense ones. An embedding with sparse=False has a gradient as large as its weight; train it by Adam instead of "
    "SparseAdam, which also changes the rows that a batch does not use"
)
SPARSE_INPUT = (
    "pass its rows, columns and values as three tensors, and multiply in forward with "
    "torch.zeros_like(x).index_add(0, rows, values[:, None] * x[columns]), which needs no other memory than the "
    "products; a small one can be dense: matrix.to_dense()"
)


class UnwritableError(Exception):
    """Raised for what a schedule file cannot express. The caller knows the operation."""


def tensor_type(value: torch.Tensor, device: torch.device) -> TensorType:
    """Return the type of a (fake) tensor of a step on `device`. Raises UnwritableError for sparse and quantised
    tensors, and for tensors on other devices."""
    if value.layout is not torch.strided:
        raise UnwritableError(f"a tensor of layout {value.layout}; {_DENSE}")
    shape: Any = value.shape  # torch declares that all sizes are known
    if not all(isinstance(n, int) for n in shape):
        raise UnwritableError("a tensor whose shape depends on data")
    elsewhere = value.device.type == "cpu" != device.type
    if value.device.type != device.type and not elsewhere:
        raise UnwritableError(
            f"a tensor on {value.device}, where the step runs on {device}; move the model to one device"
        )
    strides = None if value.is_contiguous() else tuple(int(s) for s in value.stride())
    return TensorType(dtype(value.dtype), tuple(int(n) for n in value.shape), strides, elsewhere)


def dtype(value: torch.dtype) -> str:
    if value not in _DTYPES:
        raise UnwritableError(f"a tensor of type {value}")
    return _DTYPES[value]


def argument(value: object, device: torch.device) -> Any:
    """Convert a literal argument of an operator. Raises UnwritableError for what a file cannot express."""
    if isinstance(value, torch.dtype):
        return {"dtype": dtype(value)}
    if isinstance(value, torch.device):
        return {"device": "main" if value.type == device.type else value.type}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        name = str(value).removeprefix("torch.")
        if name in MEMORY_FORMATS:
            return {"memory_format": name}
    if isinstance(value, complex):
        return {"complex": (value.real, value.imag)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return literal(value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise UnwritableError("a size that depends on data")
    raise UnwritableError(f"an argument of type {type(value).__name__}")


def elements(tensor: torch.Tensor, module: str, source: str) -> tuple[Any, ...]:
    """Return the elements of a constant in row-major order. Raises CaptureError if it is too large for a file."""
    if tensor.requires_grad:
        message = "forward uses a tensor that needs a gradient but is no parameter of the model"
        hint = "register it as a Parameter, or pass it as an input"
        if tensor.grad_fn is not None:
            hint = "it is a result of an earlier call: store it after .detach(), self.h = h.detach()"
        if isinstance(tensor, torch.nn.Parameter):
            hint += "; if it is a Parameter, a checkpoint of your own runs its module again: switch that off"
        raise CaptureError(message, module, source, hint)
    if tensor.numel() > MAX_CONSTANT:
        size = f"{tensor.numel()} elements, over {MAX_CONSTANT}"
        raise CaptureError(f"forward uses a constant tensor of {size}", module, source, _BIG)
    if tensor.device.type == "meta":
        raise CaptureError("forward uses a constant tensor on the meta device, which has no data", module, source, _BIG)
    flat: Any = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
    return tuple(argument(x, tensor.device) for x in flat.tolist())
