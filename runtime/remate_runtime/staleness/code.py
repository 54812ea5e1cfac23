"""The user's own code that a model's forward reaches: functions by a hash of their syntax trees, globals by their
values.

Followed are globals, closures, defaults, `self.method`, `super().method`, classes named in own code, what a function
imports when it runs, and what objects and containers hold that are described, as far as they are the user's. Functions
of packages are looked up where they stand (`library`). Not seen: what `getattr` with a computed name, `eval` and
extensions in other languages reach.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from .library import Library
from .names import NOTHING, Names, Place, cell_contents, is_code
from .ownership import has_own_file, is_own, is_own_function, name_in_value, qualified
from .questions import Ask, question
from .syntax import Reference, canonical, class_reads, function_tree, references
from .values import (
    OPAQUE,
    has_fields,
    hashed,
    held_by,
    recorded,
    short_hash,
    underlying,
    unwrapped,
)

_FUNCTIONS = 5000  # that are followed; no model reaches so many
_NESTED = 3  # closures inside closures whose contents count
_GENERATED = "<string>"  # what dataclass and namedtuple call the file of the methods that they write
NO_FIELDS: Mapping[str, Collection[str]] = types.MappingProxyType({})


class _Within(NamedTuple):
    """What is known of the code that reads what a closure holds. depth: closures that it is in."""

    code: Any
    depth: int

    def source(self, function: Any) -> str | None:
        return self.code.source_within(function, self.depth)

    def fields(self, thing: Any) -> Sequence[str]:
        return self.code.fields(thing)


class Code:
    """Collects the code that given functions reach.

    functions: hash by qualified name, None where the source cannot be read. values: globals by `module.name`. held: for
    every global in `values`, and every function and method that was followed by name, what holds it, and its key there.
    cells: what closures hold. members: methods that are called on `self`, by
    class. described: classes of the objects that were described. questions: to the process, by name. library: the
    functions of packages.
    """

    def __init__(
        self, fields: Mapping[str, Collection[str]] = NO_FIELDS, met: Callable[[Any], None] | None = None
    ) -> None:
        """fields: attributes that forward reads of objects, by the name of their class. met: is called with each
        object."""
        self._fields, self._met = fields, met
        self._hashes: dict[str, set[str | None]] = {}
        self._made: dict[tuple[Any, int], str | None] = {}  # hashes, by function and the closures around it
        self._followed: set[tuple[Any, Any]] = set()  # functions, each with the class that `self` is of
        self._waiting: list[tuple[Any, Any]] = []  # of those, the ones whose references are still to be looked at
        self._working = False
        self._class_methods: set[Any] = set()
        self.values: dict[str, Any] = {}
        self.held: dict[str, tuple[Mapping[str, Any] | type, str]] = {}
        self.cells: dict[int, types.CellType] = {}
        self.members: dict[type, set[str]] = {}
        self.described: set[str] = set()
        self.objects: dict[int, Any] = {}  # described, by id
        self.questions: dict[str, Ask] = {}
        self.library = Library(self._in_library, self.members)

    def fields(self, thing: Any) -> Sequence[str]:
        """The attributes that forward reads of an object; its class is followed."""
        kind = type(thing)
        self.objects[id(thing)] = thing
        self.described.add(kind.__qualname__)
        self._class(kind)
        if self._met is not None:
            self._met(thing)
        return tuple(self._fields.get(kind.__qualname__, ()))

    def all_followed(self) -> list[types.FunctionType]:
        """The functions whose code was looked at."""
        return list({id(function): function for function, _ in self._followed}.values())

    def _in_library(self, function: Any) -> Any:
        """A function that stands in a package, described; one of the user's, though it may call itself the package's,
        with its source."""
        if isinstance(function, types.FunctionType) and has_own_file(function):
            self.follow(function)
            return {"is": name_in_value(function), **({"source": made} if (made := self._hash(function, 0)) else {})}
        described = recorded(function, self)
        return None if described is OPAQUE else described

    @property
    def known_fields(self) -> Mapping[str, Collection[str]]:
        """The attributes that forward reads of objects, by the name of their class."""
        return self._fields

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
        self.library.module_class(kind)
        for name in ("forward", "__call__"):
            found = inspect.getattr_static(kind, name, None)
            if name == "forward" or found is not nn.Module.__call__:
                self._static(found, kind)

    def instance(self, thing: Any) -> None:
        """All methods of the class of an object that is the user's."""
        self._class(type(thing))

    def source(self, function: Any) -> str | None:
        """Hash of a function of the user's own (or of all methods of a class of theirs); None of any other."""
        return self.source_within(function, 0)

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
        bound = Names(function, kind)
        for reference in references(tree) if tree is not None else ():
            self._reference(bound, reference)
        if kind is not None and tree is not None:
            self._class_values(kind, class_reads(tree, function in self._class_methods))
        inner = getattr(function, "__wrapped__", None)
        if inner is not None:
            self._static(inner, kind)

    def source_within(self, function: Any, depth: int) -> str | None:
        """The same of a function in a closure. depth: closures that it is in."""
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
        """Of a function's source, of what its names mean outside the user's own code (`act = torch.gelu`), and of what
        its closure, its defaults and its attributes hold. depth: closures that it was found in; below some the source
        alone is taken, for closures may hold each other."""
        key = (function, depth)
        if key not in self._made:
            tree = function_tree(function)
            bound = Names(function, None)
            outside = [] if tree is None else list(filter(None, (bound.meaning(each) for each in references(tree))))
            if tree is not None and depth < _NESTED:
                outside += [f"{name}={hashed(value)}" for name, value in self._around(function, depth)]
            self._made[key] = None if tree is None else short_hash("\n".join([canonical(tree), *sorted(outside)]))
        return self._made[key]

    def _around(self, function: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """What a function holds beside its code, described."""
        seen = _Within(self, depth + 1)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            held = cell_contents(cell)
            if held is not NOTHING and name != "__class__" and not isinstance(held, nn.Module):
                value = recorded(held, seen, tensors=True)
                if value is not OPAQUE:
                    self.cells[id(cell)] = cell
                    yield name, value
        attributes = {name: value for name, value in held_by(function).items() if not name.startswith("__")}
        for name in ("__defaults__", "__kwdefaults__"):
            attributes[name] = getattr(function, name, None)
        for name, held in attributes.items():
            value = OPAQUE if held is None else recorded(held, seen, tensors=True)
            if value is not OPAQUE:
                yield name, value

    def _class_values(self, kind: type, names: Collection[str]) -> None:
        """What is read of a class of the user's itself: `type(self).depth`, `cls.rate`, `type(self).function`."""
        for name in sorted(names):
            base = next((base for base in kind.__mro__ if name in vars(base)), None)
            if base is None or not is_own(base.__module__):
                continue
            place, found = (f"{qualified(base)}.{name}", base, name), vars(base)[name]
            if is_code(found):
                self._static(found, kind)
                self._hold(place)
            else:
                self._value(place, found)

    def _reference(self, bound: Names, reference: Reference) -> None:
        """Follow one reference."""
        if reference.own:
            if reference.attributes and bound.kind is not None:
                found, place = bound.member(reference)
                if place is not None and is_code(found) and reference.name != "super":
                    self.members.setdefault(bound.kind, set()).add(reference.attributes[0])
                self._static(found, bound.kind)
                self._hold(place)
            return
        resolved = bound.resolve(reference)
        found, place = unwrapped(resolved.found), resolved.place
        if (asked := question(found, resolved.rest)) is not None:
            self.questions[asked[0]] = asked[1]
        if isinstance(found, type):
            self._class(found)
            if place is not None and is_own(found.__module__) and not issubclass(found, nn.Module):
                self._value(place, found)
        elif isinstance(found, types.ModuleType | nn.Module):
            return
        elif resolved.package:
            if is_code(found) and place is not None and not isinstance(place[1], type):
                self.library.reach(place[1], resolved.package, place[2])
        elif is_code(found):
            self._static(found, resolved.kind)
            self._hold(place)
            if place is not None and getattr(underlying(found), "__name__", "") != place[2]:
                self._value(place, underlying(found))
        elif inspect.getattr_static(found, "__wrapped__", None) is not None and not has_fields(found):
            self._static(found, resolved.kind)
            self._hold(place)
        elif place is not None:
            self._value(place, found)

    def _value(self, place: Place, found: Any) -> None:
        name, holder, key = place
        value = recorded(found, self, tensors=True)
        if value is not OPAQUE and (has_fields(found) or not (isinstance(value, dict) and value.keys() == {"object"})):
            self.values[name] = value
            self.held[name] = (holder, key)

    def _hold(self, place: Place | None) -> None:
        if place is not None and len(self.held) < _FUNCTIONS:
            self.held[place[0]] = place[1:]

    def _static(self, found: Any, kind: Any) -> None:
        """Follow what a class or module holds under a name: a function, property, class method, …"""
        if isinstance(found, classmethod):
            self._class_methods.add(found.__func__)
        found = underlying(found)
        found = unwrapped(found)
        if isinstance(found, types.MethodType):
            found = found.__func__
        if isinstance(found, types.FunctionType) and is_own_function(found):
            self.follow(found, kind)
        elif (
            inspect.getattr_static(found, "__wrapped__", None) is not None
        ):  # functools.lru_cache, a decorator written as a class
            self._static(found.__wrapped__, kind)

    def _class(self, kind: type) -> None:
        """Follow every method of a class of the user's own."""
        for name, function in _methods(kind):
            if isinstance(inspect.getattr_static(kind, name, None), classmethod):
                self._class_methods.add(function)
            self.follow(function, kind)
            base = next(base for base in kind.__mro__ if name in vars(base))
            self._hold((f"{qualified(base)}.{name}", base, name))

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


def _is_generated(function: Any) -> bool:
    inner = inspect.unwrap(function)
    return inner.__code__.co_filename == _GENERATED and inner.__name__.startswith("__")
