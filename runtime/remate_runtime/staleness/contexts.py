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

_CONTEXTS = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode, torch.autocast)
_CONTEXTS += (contextlib.ContextDecorator,)
_SETTINGS = (
    "mode",
    "device",
    "fast_dtype",
    "_enabled",
    "_cache_enabled",
)  # of these contexts, as far as they have them


def wrapped_by(function: object) -> Any:
    """Return what a function wraps; None for a function without `__wrapped__`."""
    return inspect.getattr_static(function, "__wrapped__", None)


def contexts(function: object) -> list[str]:
    """Return texts for the contexts that decorate a function, from outside to inside."""
    texts: list[str] = []
    while (inner := wrapped_by(function)) is not None:
        for cell in getattr(function, "__closure__", None) or ():
            content = cell_contents(cell)
            context = getattr(content, "__self__", content)  # the wrapper holds the method that makes the context
            if isinstance(context, _CONTEXTS):
                settings = {name: getattr(context, name) for name in _SETTINGS if hasattr(context, name)}
                made_by = getattr(context, "func", type(context))  # a function with contextlib.contextmanager
                texts.append(f"{qualified(made_by)} {settings}")
        function = inner
    return texts
