"""The user's own code that a model's forward reaches: functions by a hash of their syntax trees, globals by their values.

Followed are globals, closures, `self.method`, `super().method`, and classes named in own code, as far as they are the
user's. Not seen: methods of objects that are found at run time only, entries of lists and dicts of functions, what
`__dict__`, `getattr` with a computed name, `eval` and extensions in other languages reach.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from .ownership import is_own, is_own_function, module_name, module_of, qualified
from .syntax import Reference, canonical, function_tree, references
from .values import OPAQUE, is_config, recorded, short_hash, unwrapped

_FUNCTIONS = 5000  # that are followed; no model reaches so many
_NESTED = 3  # closures inside closures whose contents count
_NOTHING = object()
Place = tuple[str, Mapping[str, Any], str]  # name in the digest, what holds the value, its key there
_GENERATED = "<string>"  # what dataclass and namedtuple call the file of the methods that they write


class Code:
    """Collects the code that given functions reach.

    functions: hash by qualified name, None where the source cannot be read. values: globals by `module.name`. held: for
    every global in `values`, and every function and method that was followed by name, what holds it, and its key there.
    cells: what closures hold, by the name of the function and of the variable.
    """

    def __init__(self) -> None:
        self._hashes: dict[str, set[str | None]] = {}
        self._made: dict[tuple[Any, int], str | None] = {}  # hashes, by function and the closures around it
        self._followed: set[tuple[Any, Any]] = set()  # functions, each with the class that `self` is of
        self._waiting: list[tuple[Any, Any]] = []  # of those, the ones whose references are still to be looked at
        self._working = False
        self.values: dict[str, Any] = {}
        self.held: dict[str, tuple[Mapping[str, Any], str]] = {}
        self.cells: dict[str, types.CellType] = {}

    @property
    def functions(self) -> dict[str, str | None]:
        """By name, sorted. Different functions of one name (two lambdas of a class) have one hash together."""
        found: dict[str, str | None] = {}
        for name, hashes in sorted(self._hashes.items()):
            known = sorted(made for made in hashes if made)
            found[name] = (
                None if len(known) < len(hashes) else known[0] if len(known) == 1 else short_hash("".join(known))
            )
        return found

    def module_class(self, kind: type[nn.Module]) -> None:
        """What a class of modules computes: its forward, and its `__call__` if that is the user's."""
        for name in ("forward", "__call__"):
            found = inspect.getattr_static(kind, name, None)
            if name == "forward" or found is not nn.Module.__call__:
                self._static(found, kind)

    def instance(self, thing: Any) -> None:
        """All methods of the class of an object that is the user's."""
        self._class(type(thing))

    def source(self, function: Any) -> str | None:
        """Hash of a function of the user's own (or of all methods of a class of theirs); None of any other."""
        return self._source(function, 0)

    def followed(self, function: Any) -> bool:
        """Whether the code of this function is among what was collected."""
        return any(known is function for known, _ in self._followed)

    def follow(self, function: Any, kind: Any = None) -> None:
        """Record a function of the user's own and all that it reaches. kind: the class that `self` is of."""
        if (function, kind) in self._followed or len(self._followed) >= _FUNCTIONS:
            return
        self._followed.add((function, kind))
        self._waiting.append((function, kind))
        if self._working:  # a list of what waits, not recursion: what is recorded must not depend on where it began
            return
        self._working = True
        try:
            while self._waiting:
                self._look(*self._waiting.pop())
        finally:
            self._working = False

    def _look(self, function: Any, kind: Any) -> None:
        self._hashes.setdefault(qualified(function), set()).add(self._hash(function, 0))
        tree = function_tree(function)
        bound = _Names(function, kind)
        for reference in references(tree) if tree is not None else ():
            self._reference(bound, reference)
        inner = getattr(function, "__wrapped__", None)
        if inner is not None:
            self._static(inner, kind)

    def _source(self, function: Any, depth: int) -> str | None:
        function = unwrapped(function)
        if isinstance(function, type):
            if (function, depth) not in self._made:
                self._class(function)
                self._made[function, depth] = self._class_hash(function, depth)
            return self._made[function, depth]
        function = getattr(function, "__func__", function)
        if not is_own_function(function):
            return None
        self.follow(function)
        return self._hash(function, depth)

    def _hash(self, function: Any, depth: int) -> str | None:
        """Of a function's source, of what its names mean outside the user's own code (`act = torch.gelu`), and of what its
        closure holds. depth: closures that it was found in; below some the source alone is taken, for closures may hold
        each other."""
        key = (function, depth)
        if key not in self._made:
            tree = function_tree(function)
            bound = _Names(function, None)
            outside = [] if tree is None else list(filter(None, (bound.meaning(each) for each in references(tree))))
            if tree is not None and depth < _NESTED:
                outside += [f"{name}={value!r}" for name, value in self._closure(function, depth)]
            self._made[key] = None if tree is None else short_hash("\n".join([canonical(tree), *sorted(outside)]))
        return self._made[key]

    def _closure(self, function: Any, depth: int) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            held = _cell(cell)
            if held is not _NOTHING and name != "__class__" and not isinstance(held, nn.Module):
                value = recorded(held, lambda inner: self._source(inner, depth + 1), tensors=True)
                if value is not OPAQUE:
                    self.cells[f"{qualified(function)}.{name}"] = cell
                    yield name, value

    def _reference(self, bound: _Names, reference: Reference) -> None:
        """Follow one reference."""
        if reference.own:
            if reference.attributes and bound.kind is not None:
                found, place = bound.member(reference)
                self._static(found, bound.kind)
                self._hold(place)
            return
        found, place, rest = bound.resolve(reference)
        found = unwrapped(found)
        if isinstance(found, type):
            self._class(found)
        elif isinstance(found, types.ModuleType):
            return
        elif is_own_function(found) or hasattr(found, "__wrapped__"):
            self._static(found, None)
            self._hold(place)
        elif callable(found) and not rest and not isinstance(found, functools.partial | nn.Module):
            self._class(type(found))
        elif place is not None:
            self._value(place, found)

    def _value(self, place: Place, found: Any) -> None:
        name, holder, key = place
        value = recorded(found, self.source, tensors=True)
        if value is not OPAQUE and not (isinstance(value, dict) and "object" in value):
            self.values[name] = value
            self.held[name] = (holder, key)

    def _hold(self, place: Place | None) -> None:
        if place is not None and len(self.held) < _FUNCTIONS:
            self.held[place[0]] = place[1:]

    def _static(self, found: Any, kind: Any) -> None:
        """Follow what a class or module holds under a name: a function, property, class method, …"""
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if isinstance(found, property):
            found = found.fget
        found = unwrapped(found)
        if isinstance(found, types.MethodType):
            found = found.__func__
        if isinstance(found, types.FunctionType) and is_own_function(found):
            self.follow(found, kind)
        elif hasattr(found, "__wrapped__"):  # functools.lru_cache, a decorator written as a class
            self._static(found.__wrapped__, kind)

    def _class(self, kind: type) -> None:
        """Follow every method of a class of the user's own."""
        for _, function in _methods(kind):
            self.follow(function, kind)

    def _class_hash(self, kind: type, depth: int) -> str | None:
        """One hash of all methods of a class of the user's own; None of any other."""
        if not is_own(kind.__module__):
            return None
        return short_hash("\n".join(sorted(f"{name}={self._hash(method, depth)}" for name, method in _methods(kind))))


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Functions by name that a class of the user's own has, those of its bases too, as far as they are the user's."""
    if not is_own(kind.__module__):
        return
    for base in kind.__mro__:
        if not is_own(base.__module__) or issubclass(base, nn.Module):
            continue
        for name, found in vars(base).items():
            inner = getattr(found, "__func__", getattr(found, "fget", found))
            if isinstance(inner, types.FunctionType) and not _is_generated(inner):
                yield name, inner


class _Names:
    """What the names in a function mean."""

    def __init__(self, function: Any, kind: Any) -> None:
        self.kind = kind
        self._function = function
        code = function.__code__
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))

    def meaning(self, reference: Reference) -> str | None:
        """What a name means where that is not the user's own code; None where it is, or where its value is recorded."""
        if reference.own:
            return None
        found, place, rest = self.resolve(reference)
        found = unwrapped(found)
        if isinstance(found, type):
            return None if is_own(found.__module__) else f"{reference.name}: {found.__name__}"
        if isinstance(found, types.ModuleType):
            return f"{reference.name}: {found.__name__}"
        if is_own_function(found) or hasattr(found, "__wrapped__") or isinstance(found, nn.Module) or rest:
            return None
        if not callable(found) or (isinstance(found, functools.partial) and place is not None):
            return None
        return f"{reference.name}: {getattr(found, '__name__', type(found).__name__)}"

    def member(self, reference: Reference) -> tuple[Any, Place | None]:
        """`self.name`, or `super().name`, as the class has it, and the class that holds it."""
        name = reference.attributes[0]
        order = list(self.kind.__mro__)
        if reference.name == "super":
            own = _cell(self._cells["__class__"]) if "__class__" in self._cells else None
            order = order[order.index(own) + 1 :] if own in order else []
        base = next((base for base in order if name in vars(base)), None)
        if base is None:
            return None, None
        return vars(base)[name], (f"{qualified(base)}.{name}", vars(base), name)

    def resolve(self, reference: Reference) -> tuple[Any, Place | None, tuple[str, ...]]:
        """What a name and its attributes lead to, as far as they can be followed without running anything: (object,
        where it is held as (name in the digest, dict, key), attributes that are left)."""
        name, rest = reference.name, reference.attributes
        scope = self._function.__globals__
        place: Place | None = None
        if name in self._cells:
            found = _cell(self._cells[name])
        elif name in scope:
            found = scope[name]
            place = (f"{module_of(self._function)}.{name}", scope, name)
        else:
            return None, None, ()
        while rest and (
            _is_own_module(found) or is_config(found) or (isinstance(found, type) and is_own(found.__module__))
        ):
            held = vars(found).get(rest[0], _NOTHING) if hasattr(found, "__dict__") else _NOTHING
            if held is _NOTHING:
                break
            if isinstance(found, types.ModuleType):
                label = module_name(found.__name__)
            else:
                label = qualified(found) if isinstance(found, type) else place[0] if place else name
            place = (f"{label}.{rest[0]}", vars(found), rest[0])
            found, rest = held, rest[1:]
        return found, place, rest


def _is_own_module(found: Any) -> bool:
    return isinstance(found, types.ModuleType) and found.__name__ in sys.modules and is_own(found.__name__)


def _is_generated(function: Any) -> bool:
    inner = inspect.unwrap(function)
    return inner.__code__.co_filename == _GENERATED and inner.__name__.startswith("__")


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _NOTHING
