"""Functions in C that read a float without asking it.

While a step is traced with tracked numbers, those of `math` follow them or refuse them, and those of torch that make
tensors of numbers refuse them.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..capture.places import user_place
from .tracked import Tracked, lost

_EXPRESSED = {"sqrt": "sqrt", "exp": "exp", "log": "log", "pow": "pow"}  # operations that a file can express
_OF_FINITE = {"isfinite": True, "isinf": False, "isnan": False}  # of the live numbers themselves
_HOOKED = {"floor", "ceil", "trunc"}  # these ask
_MAKERS = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor}


@contextmanager
def tracked_functions(model: nn.Module) -> Iterator[None]:
    """Let functions follow or refuse tracked numbers in the `with` block, wherever modules refer to them by name.

    Args:
        model: The live model; its modules may have functions in attributes.
    """
    following = {
        function: _following(name, function)
        for name, function in vars(math).items()
        if callable(function) and name not in _HOOKED and not name.startswith("__")
    }
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for names in _namespaces(model):
            for name, value in list(names.items()):
                if type(value) is _BUILTIN and value in following:
                    replaced.append((names, name, value))
                    names[name] = following[value]
        with _Makers():
            yield
    finally:
        for names, name, value in reversed(replaced):
            names[name] = value


_BUILTIN = type(math.exp)


def _namespaces(model: nn.Module) -> Iterator[dict[str, Any]]:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__ != __name__:
            yield vars(module)
    for module in model.modules():
        yield vars(module)


def _following(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def follow(*args: Any, **kwargs: Any) -> Any:
        args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
        if not any(map(_is_tracked, (*args, *kwargs.values()))):
            return function(*args, **kwargs)
        first = args[0] if args else None
        if name == "fabs":
            return abs(first)  # type: ignore[arg-type]
        if name in _OF_FINITE and isinstance(first, Tracked) and isinstance(first.tree, str):
            return _OF_FINITE[name]
        if name not in _EXPRESSED or kwargs or not all(isinstance(each, int | float) for each in args):
            return lost(f"math.{name}()", user_place(sys._getframe(1)).line)
        trees = [each.tree if isinstance(each, Tracked) else float(each) for each in args]
        tracking = next(each.tracking for each in args if isinstance(each, Tracked))
        if name == "log" and len(args) > 1:  # as math computes it
            return follow(args[0]) / follow(args[1])
        return tracking.track(function(*args), (_EXPRESSED[name], *trees))

    return follow


def _is_tracked(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_tracked, value))
    return isinstance(value, Tracked)


class _Makers(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _MAKERS and _is_tracked(args):
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_name == "__torch_function__":  # of other modes
                frame = frame.f_back
            lost(f"torch.{func.__name__}()", user_place(frame).line)
        return func(*args, **(kwargs or {}))
