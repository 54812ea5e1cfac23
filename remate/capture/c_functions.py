"""Functions in C read the number of a subclass of int or float without asking it.

While a step is traced, other functions take their places.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from remate_runtime.format import is_array

from .sizes import SizeLog, TracedSize

_MAKERS = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor}
Function = Callable[..., Any]
_BUILTIN = type(math.exp)
_OF_INTEGERS = ("gcd", "lcm", "isqrt", "comb", "perm", "factorial")  # the others ask for a float


@contextmanager
def replaced_functions(model: torch.nn.Module, by_function: Mapping[Function, Function]) -> Generator[None]:
    """Replace functions by others in the `with` block, wherever modules refer to them by name.

    Args:
        model: The live model; its modules may have functions in attributes.
        by_function: The replacements.
    """
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for names in _namespaces(model):
            for name, value in list(names.items()):
                if type(value) is _BUILTIN and value in by_function:
                    replaced.append((names, name, value))
                    names[name] = by_function[value]
        yield
    finally:
        for names, name, value in reversed(replaced):
            names[name] = value


def _namespaces(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    loaded: list[object] = list(sys.modules.values())  # a program may put anything there
    for module in loaded:
        if isinstance(module, ModuleType):
            yield vars(module)
    for module in model.modules():
        yield vars(module)


@contextmanager
def size_functions(model: torch.nn.Module, sizes: SizeLog | None) -> Generator[None]:
    """Let functions record the sizes that they read in the `with` block, if sizes are recorded."""
    if sizes is None:
        yield
        return
    functions = vars(math)
    recording = {functions[name]: _recording(functions[name]) for name in _OF_INTEGERS}
    with replaced_functions(model, recording), TensorsOfNumbers(_record):
        yield


def _recording(function: Function) -> Function:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        _record(function, args)
        return function(*args)

    return call


def _record(function: Function, value: object) -> None:
    if isinstance(value, TracedSize):
        value.read(function.__name__)
    elif is_array(value):
        for each in value:
            _record(function, each)


class TensorsOfNumbers(TorchFunctionMode):
    """Reports functions that make tensors of Python numbers, with their arguments, to `seen`."""

    def __init__(self, seen: Callable[[Function, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func in _MAKERS:
            self._seen(func, (*args, *named.values()))
        return func(*args, **named)
