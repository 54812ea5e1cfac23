"""What the names in a function of the user's mean, without running anything of it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Mapping
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
from .values import held_by, is_config, unwrapped

NOTHING: Any = object()
Place = tuple[str, Mapping[str, Any] | type, str]  # name in the digest, what holds the value, its key there
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, staticmethod, classmethod, property)


class Resolved(NamedTuple):
    """What a name and its attributes lead to. place: where it is held. kind: the class that it was taken of. package:
    the module of a package that holds it."""

    found: Any
    place: Place | None = None
    rest: tuple[str, ...] = ()
    kind: type | None = None
    package: str = ""


class Names:
    """The names of one function. kind: the class that `self` is of."""

    def __init__(self, function: Any, kind: Any) -> None:
        self.kind = kind
        self._function = function
        code = function.__code__
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))

    def meaning(self, reference: Reference) -> str | None:
        """What a name means where that is not the user's own code; None where it is, or where its value is recorded."""
        if reference.own:
            return None
        resolved = self.resolve(reference)
        found = unwrapped(resolved.found)
        if resolved.package:
            return f"{reference.name}: {resolved.package}"
        if isinstance(found, type):
            return None if is_own(found.__module__) else f"{reference.name}: {found.__name__}"
        if isinstance(found, types.ModuleType):
            return None if _is_own_module(found) else f"{reference.name}: {found.__name__}"
        if is_own_function(found) or isinstance(found, nn.Module) or resolved.rest or not callable(found):
            return None
        if inspect.getattr_static(found, "__wrapped__", None) is not None or is_own(type(found).__module__):
            return None
        if isinstance(found, functools.partial) and resolved.place is not None:
            return None
        return f"{reference.name}: {getattr(found, '__name__', type(found).__name__)}"

    def member(self, reference: Reference) -> tuple[Any, Place | None]:
        """`self.name`, or `super().name`, as the class has it, and the class that holds it."""
        name = reference.attributes[0]
        order = list(self.kind.__mro__)
        if reference.name == "super":
            own = cell_contents(self._cells["__class__"]) if "__class__" in self._cells else None
            order = order[order.index(own) + 1 :] if own in order else []
        base = next((base for base in order if name in vars(base)), None)
        if base is None:
            return None, None
        return vars(base)[name], (f"{qualified(base)}.{name}", base, name)

    def resolve(self, reference: Reference) -> Resolved:
        """What a name and its attributes lead to, as far as they can be followed without running anything."""
        name, rest = reference.name, reference.attributes
        scope = self._function.__globals__
        place: Place | None = None
        kind: type | None = None
        package = ""
        if reference.imported:
            found = _module(reference.imported, scope)
        elif name in self._cells:
            found = cell_contents(self._cells[name])
        elif name in scope:
            found = scope[name]
            place = (f"{module_of(self._function)}.{name}", scope, name)
        else:
            return Resolved(NOTHING)
        while rest:
            holder, kind = _holder(found, rest[0])
            if holder is None:
                break
            if isinstance(found, types.ModuleType):
                package = "" if is_own(found.__name__) else found.__name__
                label = module_name(found.__name__)
            else:
                label = qualified(kind) if kind is not None else place[0] if place else name
            place = (f"{label}.{rest[0]}", holder if kind is None else kind, rest[0])
            kind = found if isinstance(found, type) else None
            found, rest = holder[rest[0]], rest[1:]
        return Resolved(found, place, rest, kind, package)


def _holder(found: Any, name: str) -> tuple[Mapping[str, Any] | None, type | None]:
    """What holds an attribute of a module, a class of the user's or a config, and the class, if one does; None for
    anything else."""
    if isinstance(found, type):
        base = next((base for base in found.__mro__ if name in vars(base)), None) if is_own(found.__module__) else None
        return (None, None) if base is None or not is_own(base.__module__) else (vars(base), base)
    if isinstance(found, types.ModuleType) or is_config(found):
        held = held_by(found)
        return (held, None) if name in held else (None, None)
    return None, None


def _module(name: str, scope: Mapping[str, Any]) -> Any:
    """A module that a function imports when it runs; one of the user's is imported now, as the function is going to."""
    try:
        full = importlib.util.resolve_name(name, scope.get("__package__")) if name.startswith(".") else name
        if full in sys.modules:
            return sys.modules[full]
        spec = importlib.util.find_spec(full)
        own = spec is not None and spec.origin is not None and is_own_path(spec.origin)
        return importlib.import_module(full) if own else NOTHING
    except Exception:  # the user's code
        return NOTHING


def _is_own_module(found: Any) -> bool:
    return found.__name__ in sys.modules and is_own(found.__name__)


def is_code(found: Any) -> bool:
    """Whether it is a function, or what a class holds for one."""
    return isinstance(found, _CODE)


def cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return NOTHING
