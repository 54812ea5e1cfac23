"""Attributes that forward sets to tensors (`self.aux_loss = …`), so that training loops can read them."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import BindError

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
