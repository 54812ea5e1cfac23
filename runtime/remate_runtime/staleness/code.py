"""The user's code that a model's forward reaches: functions by a hash of their syntax trees, globals by their values.

It follows globals, closures, defaults, `self.method`, `super().method`, classes that the user's code names, imports
inside functions, and the contents of recorded objects and containers, as far as they are the user's. Functions of
packages are compared in `library`. It cannot see what `getattr` with a computed name, `eval` or extensions in other
languages reach.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from .contexts import contexts, wrapped_by
from .library import Library
from .names import BUILTINS, NOTHING, Names, Place, cell_contents, is_code
from .ownership import has_own_file, is_own, is_own_function, name_in_value, qualified
from .questions import Ask, questions
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

_FUNCTIONS = 5000  # upper limit of functions to follow; no model reaches it
_NESTED = 3  # depth of nested closures whose contents count
_GENERATED = "<string>"  # file name of methods that dataclass and namedtuple generate
NO_FIELDS: Mapping[str, Collection[str]] = types.MappingProxyType({})


class _Within(NamedTuple):
    """The code that reads the contents of a closure.

    Attributes:
        code: The collected code.
        depth: Number of enclosing closures.
    """

    code: Any
    depth: int

    def source(self, function: object) -> str | None:
        return self.code.source_within(function, self.depth)

    def fields(self, obj: object) -> Sequence[str]:
        return self.code.fields(obj)


class Code:
    """Collects the code that functions reach.

    Attributes:
        functions: Hash by qualified name; None where the source cannot be read.
        values: Globals by `module.name`.
        held: Holder and key of every global in `values`, and of every followed function and method, by name.
        cells: Cells of closures by id.
        members: Methods that are called on `self`, by class.
        own_names: Attributes of `self` that the code reads, by class.
        described: Classes of the recorded objects.
        questions: Settings of the process that the code reads, by name.
        library: The functions of packages.
    """

    def __init__(
        self, fields: Mapping[str, Collection[str]] = NO_FIELDS, met: Callable[[Any], None] | None = None
    ) -> None:
        """Start without any code.

        Args:
            fields: Attributes that forward reads of objects, by class name.
            met: Called with each recorded object.
        """
        self._fields, self._met = fields, met
        self._hashes: dict[str, set[str | None]] = {}
        self._hash_of: dict[tuple[Any, int], str | None] = {}  # by function and number of enclosing closures
        self._followed: set[tuple[Any, Any]] = set()  # functions, each with the class of `self`
        self._waiting: list[tuple[Any, Any]] = []  # followed functions whose references have not been resolved yet
        self._working = False
        self._class_methods: set[Any] = set()
        self.values: dict[str, Any] = {}
        self.held: dict[str, tuple[Mapping[str, Any] | type, str]] = {}
        self.cells: dict[int, types.CellType] = {}
        self.members: dict[type, set[str]] = {}
        self.own_names: dict[type, set[str]] = {}
        self.described: set[str] = set()
        self.objects: dict[int, Any] = {}  # recorded objects by id
        self.questions: dict[str, Ask] = {}
        self.library = Library(self._in_library, self.members)

    def fields(self, obj: object) -> Sequence[str]:
        """Return the attributes that forward reads of an object, and follow its class."""
        kind = type(obj)
        self.objects[id(obj)] = obj
        self.described.add(kind.__qualname__)
        self._class(kind)
        if self._met is not None:
            self._met(obj)
        return tuple(self._fields.get(kind.__qualname__, ()))

    def all_followed(self) -> list[types.FunctionType]:
        """Return the functions whose code was read."""
        return list({id(function): function for function, _ in self._followed}.values())

    def _in_library(self, function: object) -> Any:
        """Describe a function of a package; include the source if its code is in a file of the user's."""
        if isinstance(function, types.FunctionType) and has_own_file(function):
            self.follow(function)
            return {
                "is": name_in_value(function),
                **({"source": source} if (source := self._hash(function, 0)) else {}),
            }
        described = recorded(function, self)
        return None if described is OPAQUE else described

    @property
    def known_fields(self) -> Mapping[str, Collection[str]]:
        """Return the attributes that forward reads of objects, by class name."""
        return self._fields

    @property
    def functions(self) -> dict[str, str | None]:
        """Return hashes by name, sorted. Different functions of one name (two lambdas of a class) share a hash."""
        hash_of: dict[str, str | None] = {}
        for name, hashes in sorted(self._hashes.items()):
            known = sorted(digest for digest in hashes if digest)
            hash_of[name] = (
                None if len(known) < len(hashes) else known[0] if len(known) == 1 else short_hash("".join(known))
            )
        return hash_of

    def module_class(self, kind: type[nn.Module]) -> None:
        """Follow what a class of modules computes: its forward, and its `__call__` if the user defines it."""
        self.library.module_class(kind)
        for name in ("forward", "__call__"):
            function = inspect.getattr_static(kind, name, None)
            if name == "forward" or function is not nn.Module.__call__:
                self._static(function, kind)

    def instance(self, obj: object) -> None:
        """Follow all methods of an object's class if the class is the user's."""
        self._class(type(obj))

    def input_class(self, kind: type) -> None:
        """Follow the class of an input: its methods, and what forward reads of the class itself."""
        self.described.add(kind.__qualname__)
        self._class(kind)
        self._class_values(kind, set(self._fields.get(kind.__qualname__, ())) - _own_fields(kind))

    def source(self, function: object) -> str | None:
        """Return the hash of a function of the user's, or of all methods of a class of theirs; None for any other."""
        return self.source_within(function, 0)

    def followed(self, function: object) -> bool:
        """Return whether the code of this function was collected."""
        return any(known is function for known, _ in self._followed)

    def follow(self, function: object, kind: object = None) -> None:
        """Record a function of the user's and everything that it reaches.

        Args:
            function: The function.
            kind: The class of `self`.
        """
        if (function, kind) in self._followed or len(self._followed) >= _FUNCTIONS:
            return
        self._followed.add((function, kind))
        self._waiting.append((function, kind))
        if self._working:  # a queue and no recursion: the result must not depend on where it started
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

    def source_within(self, function: object, depth: int) -> str | None:
        """Return the hash of a function in a closure.

        Args:
            function: The function or class.
            depth: Number of enclosing closures.
        """
        function = unwrapped(function)
        if isinstance(function, type):
            if (function, depth) not in self._hash_of:
                self._class(function)
                self._hash_of[function, depth] = self._class_hash(function, depth)
            return self._hash_of[function, depth]
        function = getattr(function, "__func__", function)
        if is_own_function(function):
            self.follow(function)
            return self._hash(function, depth)
        inner = wrapped_by(function)
        source = None if inner is None else self.source_within(inner, depth)
        around = contexts(function)
        return short_hash("\n".join([*around, source or ""])) if around else source

    def _hash(self, function: object, depth: int) -> str | None:
        """Hash a function's source, what its external names mean, its closure, its defaults and its attributes.

        Args:
            function: The function.
            depth: Number of enclosing closures. Beyond a limit only the source counts, because closures may refer to
                each other.
        """
        key = (function, depth)
        if key not in self._hash_of:
            tree = function_tree(function)
            bound = Names(function, None)
            outside = [] if tree is None else list(filter(None, (bound.meaning(each) for each in references(tree))))
            if tree is not None and depth < _NESTED:
                outside += [f"{name}={hashed(value)}" for name, value in self._around(function, depth)]
            self._hash_of[key] = None if tree is None else short_hash("\n".join([canonical(tree), *sorted(outside)]))
        return self._hash_of[key]

    def _around(self, function: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield the description of each value that a function holds beside its code: closure, defaults, attributes."""
        seen = _Within(self, depth + 1)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            content = cell_contents(cell)
            if isinstance(content, nn.Module):
                self.cells[id(cell)] = cell
            elif content is not NOTHING and name != "__class__":
                value = recorded(content, seen, tensors=True)
                if value is not OPAQUE:
                    self.cells[id(cell)] = cell
                    yield name, value
        attributes = {name: value for name, value in held_by(function).items() if not name.startswith("__")}
        for name in ("__defaults__", "__kwdefaults__"):
            attributes[name] = getattr(function, name, None)
        for name, content in attributes.items():
            value = OPAQUE if content is None else recorded(content, seen, tensors=True)
            if value is not OPAQUE:
                yield name, value

    def _class_values(self, kind: type, names: Collection[str]) -> None:
        """Follow what code reads of a class of the user's: `type(self).depth`, `cls.rate`, `type(self).function`."""
        for name in sorted(names):
            base = next((base for base in kind.__mro__ if name in vars(base)), None)
            if base is None or not is_own(base.__module__):
                continue
            place, value = (f"{qualified(base)}.{name}", base, name), vars(base)[name]
            if is_code(value):
                self._static(value, kind)
                self._hold(place)
            else:
                self._value(place, value)

    def _reference(self, bound: Names, reference: Reference) -> None:
        """Follow a reference."""
        if reference.own:
            if reference.attributes and bound.kind is not None:
                self.own_names.setdefault(bound.kind, set()).add(reference.attributes[0])
                target, place = bound.member(reference)
                if place is not None and is_code(target) and reference.name != "super":
                    self.members.setdefault(bound.kind, set()).add(reference.attributes[0])
                self._static(target, bound.kind)
                self._hold(place)
            return
        resolved = bound.resolve(reference)
        target, place = unwrapped(resolved.value), resolved.place
        self._hold(resolved.module)
        self.questions |= questions(target, resolved.rest, bound.texts)
        if resolved.package == BUILTINS:
            self._hold(place)
            self._hold(bound.shadow(reference.name))
        if inspect.isclass(target):
            self._class(target)
            if place is not None and is_own(target.__module__) and not issubclass(target, nn.Module):
                self._value(place, target)
        elif isinstance(target, nn.Module):
            self._hold(place)
        elif isinstance(target, types.ModuleType):
            return
        elif resolved.package:
            if is_code(target) and place is not None and not isinstance(place[1], type):
                self.library.reach(place[1], resolved.package, place[2])
        elif is_code(target):
            self._static(target, resolved.kind)
            self._hold(place)
            if place is not None and getattr(underlying(target), "__name__", "") != place[2]:
                self._value(place, underlying(target))
        elif wrapped_by(target) is not None and not has_fields(target):
            self._static(target, resolved.kind)
            self._hold(place)
        elif place is not None:
            self._value(place, target)

    def _value(self, place: Place, content: object) -> None:
        name, holder, key = place
        value = recorded(content, self, tensors=True)
        if value is not OPAQUE and (
            has_fields(content) or not (isinstance(value, dict) and value.keys() == {"object"})
        ):
            self.values[name] = value
            self.held[name] = (holder, key)

    def _hold(self, place: Place | None) -> None:
        if place is not None and len(self.held) < _FUNCTIONS:
            self.held[place[0]] = place[1:]

    def _static(self, function: Any, kind: Any) -> None:
        """Follow what a class or module holds under a name: a function, property, class method, …"""
        inner = underlying(function)
        if isinstance(function, classmethod):
            self._class_methods.add(inner)
        function = unwrapped(inner)
        if issubclass(type(function), functools.singledispatchmethod):
            function = function.dispatcher
        if isinstance(function, types.MethodType):
            function = function.__func__
        if isinstance(function, types.FunctionType) and is_own_function(function):
            self.follow(function, kind)
        elif (inner := wrapped_by(function)) is not None:  # functools.lru_cache, torch.no_grad, a decorating class
            if (around := contexts(function)) and is_own_function(inspect.unwrap(function)):
                self._hashes.setdefault(qualified(function), set()).add(short_hash("\n".join(around)))
            self._static(inner, kind)
            self._registry(function)

    def _registry(self, function: Any) -> None:
        """Record what is registered with a `functools.singledispatch` of the user's. The order does not matter."""
        registry = inspect.getattr_static(function, "registry", None)
        if issubclass(type(registry), types.MappingProxyType) and is_own_function(underlying(function.__wrapped__)):
            name = f"{qualified(function)}.registry"
            self.values[name] = recorded(registry, self, ordered=False)
            self.held[name] = (held_by(function), "registry")

    def _class(self, kind: type) -> None:
        """Follow every method of a class of the user's, and of its metaclass."""
        for name, function in _methods(type(kind)):
            self.follow(function, type(kind))
            self._hold_method(type(kind), name)
            tree = function_tree(function)
            self._class_values(kind, class_reads(tree, is_class_method=True) if tree is not None else ())
        for name, function in _methods(kind):
            if isinstance(inspect.getattr_static(kind, name, None), classmethod):
                self._class_methods.add(function)
            self.follow(function, kind)
            self._hold_method(kind, name)

    def _hold_method(self, kind: type, name: str) -> None:
        base = next(base for base in kind.__mro__ if name in vars(base))
        self._hold((f"{qualified(base)}.{name}", base, name))

    def _class_hash(self, kind: type, depth: int) -> str | None:
        """Return one hash for all methods of a class of the user's; None for any other class."""
        if not is_own(kind.__module__):
            return None
        return short_hash("\n".join(sorted(f"{name}={self._hash(method, depth)}" for name, method in _methods(kind))))


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of the methods that a class and its bases define, as far as they are the user's."""
    if not is_own(kind.__module__):
        return
    for base in kind.__mro__:
        if not is_own(base.__module__) or nn.Module in base.__mro__:
            continue
        for name, member in vars(base).items():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType) and not _is_generated(function):
                yield name, function


def _own_fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


def _is_generated(function: Any) -> bool:
    inner = inspect.unwrap(function)
    return inner.__code__.co_filename == _GENERATED and inner.__name__.startswith("__")
