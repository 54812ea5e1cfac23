"""Bytes of any optimizer's state: runs one step of it on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remate_runtime import operators
from remate_runtime.format import Model, parse_type

from ..errors import UnknownNameError

if TYPE_CHECKING:
    pass

Factory = Callable[[list[Any]], Any]  # from parameters to an optimizer
_HINT = "\n  hint: state the bytes of its state instead: optimizer_bytes, --optimizer-bytes"


def factory_named(path: str) -> Factory:
    """The class of an optimizer, by its path such as `torch.optim.Adafactor`. Raises UnknownNameError."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownNameError(f"there is no optimizer {path[:80]!r}: {error}{_HINT}") from None


def optimizer_bytes(model: Model, factory: Factory) -> int:
    """Bytes of an optimizer's state for the trainable parameters of a model, on their device.

    The optimizer runs one step on the meta device for each kind of parameter.

    Args:
        model: Parameters by name and type, and which of them are frozen.
        factory: Creates the optimizer from a list of parameters, for example `torch.optim.AdamW`.

    Raises:
        UnknownNameError: The optimizer cannot run that way, for example because it uses kernels of its own.
    """
    frozen, sizes, total = set(model.frozen), dict[str, int](), 0
    unit = operators.DEVICES[model.device].allocation
    for name, text in model.parameters.items():
        if name not in frozen:
            if text not in sizes:
                sizes[text] = sum(-(-nbytes // unit) * unit for nbytes in _state(text, factory))
            total += sizes[text]
    return total


def _state(text: str, factory: Factory) -> list[int]:
    """Bytes of each storage that the optimizer keeps for a parameter of this type."""
    import torch

    from remate_runtime.operator_calls import TORCH_DTYPES, storage_identity
    from remate_runtime.staleness import tensors_of

    kind = parse_type(text)
    parameter = torch.nn.Parameter(torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype], device="meta"))
    parameter.grad = torch.empty_like(parameter)
    optimizer: Any = None
    try:
        optimizer = factory([parameter])
        optimizer.step()
    except Exception as error:  # state created before the step read values is complete
        if optimizer is None or not optimizer.state.get(parameter):
            name = getattr(factory, "__qualname__", repr(factory))
            raise UnknownNameError(f"{name} cannot be run on a tensor {text} without memory: {error}{_HINT}") from None
    storages = {
        storage_identity(tensor): tensor.untyped_storage().nbytes()
        for tensor in tensors_of(optimizer.state.get(parameter, {}))
        if tensor.device.type == "meta"  # counters of steps stay on the CPU
    }
    return list(storages.values())
