"""Attributes that forward sets (`self.aux_loss = …`), so that training loops can read them."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import BindError
from ..format.signature import plain_attributes

_TORCH = frozenset([*dir(nn.Module), *vars(nn.Module())])  # attributes of every module


def attribute_of(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module and the name of an attribute that forward sets, as the file records it.

    Raises:
        BindError: The module does not exist, or the name belongs to a parameter, a method, or torch.
    """
    prefix, _, name = path.rpartition(".")
    try:
        module = model.get_submodule(prefix)
    except AttributeError:
        raise BindError(f"the schedule sets {path!r} at each call, and the model has no module {prefix!r}") from None
    member: Any = getattr(type(module), name, None)
    registered = [vars(module)[kind] for kind in ("_parameters", "_buffers", "_modules")]
    if name in _TORCH or callable(member) or hasattr(member, "__set__") or any(name in kind for kind in registered):
        raise BindError(f"the schedule sets {path!r} at each call, which is not a plain attribute of the model")
    return module, name


def plain_values(model: nn.Module, outputs: Any) -> dict[str, object]:
    """Return the values of the attributes that a step sets to values without tensors, by path."""
    places = ((path, *attribute_of(model, path)) for path in plain_attributes(outputs))
    return {path: getattr(module, name, None) for path, module, name in places}


def can_be_set(model: nn.Module, path: str) -> bool:
    """Return whether a step can set an attribute."""
    try:
        attribute_of(model, path)
    except BindError:
        return False
    return True
