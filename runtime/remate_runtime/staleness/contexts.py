"""Contexts that decorate a function: `torch.no_grad()(function)`, `torch.autocast(...)(function)`, those of contextlib.

The decorated function has the name and module of the original. Only the closures of its wrappers tell of the context.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from .names import cell_contents
from .ownership import qualified

_CONTEXTS = (
    torch.no_grad,
    torch.enable_grad,
    torch.set_grad_enabled,
    torch.inference_mode,
    torch.autocast,
    contextlib.ContextDecorator,
)
_SETTINGS = ("mode", "device", "fast_dtype", "_enabled", "_cache_enabled")  # as far as a context has them


def wrapped_by(function: object) -> Any:
    """Return what a function wraps; None for a function without `__wrapped__`."""
    return inspect.getattr_static(function, "__wrapped__", None)


def with_wrapped(function: Any) -> list[Any]:
    """Return a function and what it wraps, from outside to inside. The last one wraps nothing."""
    functions = [function]
    while (inner := wrapped_by(functions[-1])) is not None:
        functions.append(inner)
    return functions


def contexts(function: object) -> list[str]:
    """Return texts for the contexts that decorate a function, from outside to inside."""
    texts: list[str] = []
    for wrapper in with_wrapped(function)[:-1]:
        for cell in getattr(wrapper, "__closure__", None) or ():
            content = cell_contents(cell)
            context = getattr(content, "__self__", content)  # the wrapper holds the method that makes the context
            if isinstance(context, _CONTEXTS):
                settings = {name: getattr(context, name) for name in _SETTINGS if hasattr(context, name)}
                made_by = getattr(context, "func", type(context))  # a function with contextlib.contextmanager
                texts.append(f"{qualified(made_by)} {settings}")
    return texts
