"""Functions in C that read a float without asking it.

While a step is traced with tracked numbers, those of `math` follow them or refuse them, and those of torch that make
tensors of numbers refuse them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

from torch import nn

from remate_runtime.format import is_array

from ..capture.c_functions import TensorsOfNumbers, replaced_functions
from ..capture.places import user_place
from .tracked import Tracked, caller, lost

_EXPRESSED = {"sqrt": "sqrt", "exp": "exp", "log": "log", "pow": "pow"}  # operations that a file can express
_OF_FINITE = {"isfinite": True, "isinf": False, "isnan": False}  # of the live numbers themselves
_HOOKED = {"floor", "ceil", "trunc"}  # these ask


@contextmanager
def tracked_functions(model: nn.Module) -> Generator[None]:
    """Let functions follow or refuse tracked numbers in the `with` block, wherever modules refer to them by name.

    Args:
        model: The live model; its modules may have functions in attributes.
    """
    following = {
        function: _following(name, function)
        for name, function in vars(math).items()
        if callable(function) and name not in _HOOKED and not name.startswith("__")
    }
    with replaced_functions(model, following), TensorsOfNumbers(_refuse_tensors):
        yield


def _following(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def follow(*args: Any, **kwargs: Any) -> Any:
        args = tuple(list(each) if _is_iterator(each) else each for each in args)
        if not any(map(_is_tracked, (*args, *kwargs.values()))):
            return function(*args, **kwargs)
        first = args[0] if args else None
        if name == "fabs":
            return abs(first)  # type: ignore[arg-type]
        if name in _OF_FINITE and isinstance(first, Tracked) and isinstance(first.tree, str):
            return _OF_FINITE[name]
        if name not in _EXPRESSED or kwargs or not all(isinstance(each, int | float) for each in args):
            return lost(f"math.{name}()", user_place(caller()).line)
        trees = [each.tree if isinstance(each, Tracked) else float(each) for each in args]
        tracking = next(each.tracking for each in args if isinstance(each, Tracked))
        if name == "log" and len(args) > 1:  # as math computes it
            return follow(args[0]) / follow(args[1])
        return tracking.track(function(*args), (_EXPRESSED[name], *trees))

    return follow


def _is_iterator(value: object) -> TypeGuard[Iterator[Any]]:
    return isinstance(value, Iterator)


def _is_tracked(value: object) -> bool:
    if is_array(value):
        return any(map(_is_tracked, value))
    return isinstance(value, Tracked)


def _refuse_tensors(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if _is_tracked(args):
        frame = caller()
        while frame is not None and frame.f_code.co_name == "__torch_function__":
            frame = frame.f_back
        lost(f"torch.{function.__name__}()", user_place(frame).line)
