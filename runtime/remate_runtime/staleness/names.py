"""Resolves the names in a function of the user's without running any of its code."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from .ownership import (
    is_own,
    is_own_function,
    is_own_path,
    module_name,
    module_of,
    qualified,
)
from .syntax import Reference
from .values import held_by, is_config, is_partial, unwrapped

NOTHING: Any = object()
BUILTINS = "builtins"
Place = tuple[str, Mapping[str, Any] | type, str]  # name in the digest, holder of the value, key in the holder
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, staticmethod, classmethod, property)


class Resolved(NamedTuple):
    """What a name and its attributes resolve to.

    Attributes:
        value: The value.
        place: Where the value is held.
        rest: Attributes that could not be followed.
        kind: The class that the value was read from.
        package: The module of a package that holds the value.
        module: Where the user's module is held that the function imports when it runs.
    """

    value: Any
    place: Place | None = None
    rest: tuple[str, ...] = ()
    kind: type | None = None
    package: str = ""
    module: Place | None = None


class Names:
    """The names of a function.

    Attributes:
        kind: The class of `self`.
    """

    def __init__(self, function: Any, kind: Any) -> None:
        self.kind = kind
        self._function = function
        code = function.__code__
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))

    @property
    def texts(self) -> Iterator[str]:
        """Yield the texts that the function may pass as a name: its constants, and globals that it names."""
        code, scope = self._function.__code__, self._function.__globals__
        named = (scope.get(name) for name in code.co_names)
        yield from (text for text in (*code.co_consts, *named) if isinstance(text, str))

    def meaning(self, reference: Reference) -> str | None:
        """Return what a name means outside the user's code; None for their own, and where its value is recorded."""
        if reference.own:
            return None
        resolved = self.resolve(reference)
        value = unwrapped(resolved.value)
        if resolved.package == BUILTINS:
            return None
        if resolved.package:
            return f"{reference.name}: {resolved.package}"
        if isinstance(value, type):
            return None if is_own(value.__module__) else f"{reference.name}: {value.__name__}"
        if isinstance(value, types.ModuleType):
            return None if _is_own_module(value) else f"{reference.name}: {value.__name__}"
        if is_own_function(value) or isinstance(value, nn.Module) or resolved.rest or not callable(value):
            return None
        if inspect.getattr_static(value, "__wrapped__", None) is not None or is_own(type(value).__module__):
            return None
        if is_partial(value) and resolved.place is not None:
            return None
        return f"{reference.name}: {getattr(value, '__name__', type(value).__name__)}"

    def member(self, reference: Reference) -> tuple[Any, Place | None]:
        """Return `self.name` or `super().name` as the class defines it, and the place that holds it."""
        name = reference.attributes[0]
        order: list[type] = list(self.kind.__mro__)
        if reference.name == "super":
            own = cell_contents(self._cells["__class__"]) if "__class__" in self._cells else None
            order = order[order.index(own) + 1 :] if own in order else []
        base = next((base for base in order if name in vars(base)), None)
        if base is None:
            return None, None
        return vars(base)[name], (f"{qualified(base)}.{name}", base, name)

    def shadow(self, name: str) -> Place:
        """Return the place of a global that would hide a builtin function of this name."""
        return f"{module_of(self._function)}.{name}", self._function.__globals__, name

    def resolve(self, reference: Reference) -> Resolved:
        """Resolve a name and its attributes as far as possible without running code."""
        name, rest = reference.name, reference.attributes
        scope = self._function.__globals__
        place: Place | None = None
        module: Place | None = None
        kind: type | None = None
        package = ""
        if reference.imported:
            value = _module(reference.imported, scope)
            if isinstance(value, types.ModuleType) and _is_own_module(value):
                module = (f"sys.modules.{value.__name__}", sys.modules, value.__name__)
        elif name in self._cells:
            value = cell_contents(self._cells[name])
        elif name in scope:
            value = scope[name]
            place = (f"{module_of(self._function)}.{name}", scope, name)
        elif name in vars(builtins):
            value, package = vars(builtins)[name], BUILTINS
            place = (f"{BUILTINS}.{name}", vars(builtins), name)
        else:
            return Resolved(NOTHING)
        while rest:
            holder, kind = _holder(value, rest[0])
            if holder is None:
                break
            if isinstance(value, types.ModuleType):
                package = "" if is_own(value.__name__) else value.__name__
                label = module_name(value.__name__)
            else:
                label = qualified(kind) if kind is not None else place[0] if place else name
            place = (f"{label}.{rest[0]}", holder if kind is None else kind, rest[0])
            kind = value if isinstance(value, type) else None
            value, rest = holder[rest[0]], rest[1:]
        return Resolved(value, place, rest, kind, package, module)


def _holder(value: object, name: str) -> tuple[Mapping[str, Any] | None, type | None]:
    """Return the mapping that holds an attribute of a module, config or class of the user's, and that class, if any.

    (None, None) for any other value.
    """
    if isinstance(value, type):
        base = next((base for base in value.__mro__ if name in vars(base)), None) if is_own(value.__module__) else None
        return (None, None) if base is None or not is_own(base.__module__) else (vars(base), base)
    if isinstance(value, types.ModuleType) or is_config(value):
        attributes = held_by(value)
        return (attributes, None) if name in attributes else (None, None)
    return None, None


def _module(name: str, scope: Mapping[str, Any]) -> Any:
    """Return a module that a function imports when it runs. A module of the user's is imported now."""
    try:
        full = importlib.util.resolve_name(name, scope.get("__package__")) if name.startswith(".") else name
        if full in sys.modules:
            return sys.modules[full]
        spec = importlib.util.find_spec(full)
        own = spec is not None and spec.origin is not None and is_own_path(spec.origin)
        return importlib.import_module(full) if own else NOTHING
    except Exception:  # the user's code failed
        return NOTHING


def _is_own_module(module: Any) -> bool:
    return module.__name__ in sys.modules and is_own(module.__name__)


def is_code(value: object) -> bool:
    """Return whether a value is a function or a descriptor of one."""
    return isinstance(value, _CODE)


def cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty cell
        return NOTHING
