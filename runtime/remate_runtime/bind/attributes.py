"""Attributes that forward sets to tensors (`self.aux_loss = …`), for loops that read them from the modules after the
call."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import BindError

_TORCH = frozenset([*dir(nn.Module), *vars(nn.Module())])  # what a module is made of


def attribute_of(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module and the name of the attribute that a file says forward sets. Raises BindError where there is no such
    module, or where the name is something that a tensor must not replace: a parameter, a method, what torch uses."""
    prefix, _, name = path.rpartition(".")
    try:
        module = model.get_submodule(prefix)
    except AttributeError:
        raise BindError(f"the schedule sets {path!r} at each call, and the model has no module {prefix!r}") from None
    made: Any = getattr(type(module), name, None)
    registered = (module._parameters, module._buffers, module._modules)
    if name in _TORCH or callable(made) or hasattr(made, "__set__") or any(name in kind for kind in registered):
        raise BindError(f"the schedule sets {path!r} at each call, which is no plain attribute of the model")
    return module, name
