"""Finds the classes of records (dataclasses, named tuples) that a model returns, by name, in the model's code."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import REPLAN, BindError
from ..support.plain_text import plain

_NOT_LOOKED_INTO = {*sys.stdlib_module_names, "torch", "numpy"}
Make = Callable[[dict[str, Any]], Any]


def record_class(name: str, fields: tuple[str, ...], model: nn.Module) -> type | None:
    """Return the record class `name` with these fields that is nearest to the model's code; None without a match.

    The fields of a `torch.Size` are its axes. For other classes, the search covers attributes of the model's modules
    and of their classes, closures of their methods, the Python modules that define these classes and methods, and the
    modules that those import.
    """
    if _is_size(name, fields):
        return torch.Size
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        for space in _spaces(model):
            kind = space.get(name)
            if isinstance(kind, type) and _has(kind, fields):
                return kind
        for space in _spaces(model):
            for kind in list(space.values()):  # the class may have another name there
                if isinstance(kind, type) and kind.__name__ == name and _has(kind, fields):
                    return kind
    return None


def record_maker(name: str, fields: tuple[str, ...], model: nn.Module) -> Make:
    """Return a function that builds such a record from its fields.

    Raises:
        BindError: The class does not exist.
    """
    kind = record_class(name, fields, model)
    if kind is None:
        raise BindError(
            f"the model returns a record {plain(name)!r} with the fields {', '.join(map(plain, fields))}, and its "
            "modules neither define nor import such a class\n  define the class at the top level of a module that the "
            f"model's uses, and {REPLAN}"
        )
    if kind is torch.Size:
        return lambda values: torch.Size(values.values())
    if _constructs(kind, fields):
        return lambda values: kind(**values)
    return lambda values: _filled(kind, values)


def _is_size(name: str, fields: tuple[str, ...]) -> bool:
    return name == torch.Size.__name__ and fields == tuple(map(str, range(len(fields))))


def _has(kind: type, fields: tuple[str, ...]) -> bool:
    """Return whether a record of this class has exactly these fields."""
    return _constructs(kind, fields) or (
        dataclasses.is_dataclass(kind) and {field.name for field in dataclasses.fields(kind)} == set(fields)
    )


def _constructs(kind: type, fields: tuple[str, ...]) -> bool:
    """Return whether calling the class with these fields builds a record."""
    named, defaults = getattr(kind, "_fields", None), getattr(kind, "_field_defaults", {})
    if dataclasses.is_dataclass(kind):
        if not kind.__dataclass_params__.init or "__init__" not in vars(kind):  # type: ignore[attr-defined]
            return False
        taken = [field for field in dataclasses.fields(kind) if field.init]
        required = {
            field.name
            for field in taken
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        allowed = {field.name for field in taken}
    elif issubclass(kind, tuple) and named is not None:
        allowed = set(named)
        required = allowed - set(defaults)
    else:
        return False
    return required <= set(fields) <= allowed


def _filled(kind: type[object], values: dict[str, Any]) -> Any:
    """Build a dataclass without its constructor, which does not accept its fields."""
    record = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


def _spaces(model: nn.Module) -> Iterator[Mapping[str, Any]]:
    """Yield namespaces from the nearest to the farthest."""
    classes = dict.fromkeys(base for module in model.modules() for base in type(module).__mro__ if base is not object)
    own = {base.__module__: None for base in classes}
    globals_ = [vars(sys.modules[name]) for name in own if name in sys.modules]
    yield from globals_
    ours = [base for base in classes if base.__module__.partition(".")[0] != "torch"]
    methods = [method for base in ours for method in vars(base).values()]
    functions = [f for f in map(_function, methods) if f is not None]
    for function in functions:
        yield _enclosed(function)
    yield from (vars(base) for base in ours)
    yield from (vars(module) for module in model.modules())
    yield from {id(f.__globals__): f.__globals__ for f in functions}.values()
    for space in globals_:
        if str(space.get("__name__", "")).partition(".")[0] == "torch":
            continue
        for value in list(space.values()):
            if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _NOT_LOOKED_INTO:
                yield vars(value)
            elif isinstance(value, types.FunctionType):
                yield _enclosed(value)
                yield value.__globals__


def _function(method: Any) -> types.FunctionType | None:
    inner = getattr(method, "__func__", method)
    inner = getattr(inner, "fget", inner)
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    return inner if isinstance(inner, types.FunctionType) else None


def _enclosed(function: types.FunctionType) -> dict[str, Any]:
    contents: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return contents
