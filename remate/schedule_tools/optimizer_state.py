"""Bytes of the state of any optimizer: what it makes for tensors without memory, in one step."""

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
    """The class of an optimizer by its path, `torch.optim.Adafactor`. Raises UnknownNameError."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownNameError(f"there is no optimizer {path[:80]!r}: {error}{_HINT}") from None


def optimizer_bytes(model: Model, factory: Factory) -> int:
    """Bytes that the state of an optimizer takes for the trainable parameters of a model, on their device.

    The optimizer is made for each kind of parameter on the meta device, and makes one step.

    Args:
        model: Parameters by name and type, and which of them are frozen.
        factory: Makes the optimizer of a list of parameters, for example `torch.optim.AdamW`.

    Raises:
        UnknownNameError: It makes no state that way, for example because it runs kernels of its own.
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
    """Bytes of each storage that the optimizer keeps for one parameter of this type."""
    import torch

    from remate_runtime.operator_calls import TORCH_DTYPES
    from remate_runtime.staleness import tensors_of

    kind = parse_type(text)
    parameter = torch.nn.Parameter(torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype], device="meta"))
    parameter.grad = torch.empty_like(parameter)
    optimizer: Any = None
    try:
        optimizer = factory([parameter])
        optimizer.step()
    except Exception as error:  # state that was made before the step asked for values is complete
        if optimizer is None or not optimizer.state.get(parameter):
            name = getattr(factory, "__qualname__", repr(factory))
            raise UnknownNameError(f"{name} cannot be run on a tensor {text} without memory: {error}{_HINT}") from None
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in tensors_of(optimizer.state.get(parameter, {}))
        if tensor.device.type == "meta"  # counters of steps stay on the CPU
    }
    return list(storages.values())
