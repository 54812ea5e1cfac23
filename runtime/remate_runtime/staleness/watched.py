"""Snapshots of what a model depends on, by identity and content, compared at every call in a few microseconds.

An object with a different identity may have an equal value. The guard then compares values once.
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..bind.containers import is_mapping
from .attributes import HOOKS, REGISTERED, global_hooks, hooks_of
from .inner_values import NONE, bytes_of, inner, is_array, is_bytes_of_array, may_change
from .lookup import CALL, PROXY_GET
from .ownership import is_own, qualified
from .values import (
    MISSING,
    NO_ATTRIBUTES,
    has_parts,
    held_by,
    is_constant,
    is_container,
    parts_of_value,
    requested,
)

_FUNCTION = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CODE = operator.attrgetter("__code__")
_CALLING = ("forward", "__call__", CALL)  # a module's own ones hide those of its class
_PLAIN = frozenset({bool, int, float, str, type(None)})
_COUNTING = frozenset({itertools.count})  # their text says how far they are
_DICT_GET: Callable[..., Any] = vars(dict)["get"]  # subclasses may have methods of their own


class ModelSnapshot:
    """Collects what to watch; `same` returns whether everything is unchanged."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = {}
        self._spaces: dict[type, Mapping[str, Any]] = {}  # attributes of classes
        self._known: set[int] = set()
        self._alive: list[Any] = []
        self._tensors: list[torch.Tensor] = []
        self._functions: dict[int, types.FunctionType] = {}
        self._of_packages: list[types.FunctionType] = []
        self._requested: list[tuple[Callable[[], Any], Any]] = []
        self._lists: list[tuple[Any, Any]] = []
        self._dicts: list[tuple[dict[Any, Any], list[Any]]] = []
        self._sets: list[tuple[Any, Any]] = []
        self._arrays: list[tuple[Any, bytes]] = []
        self._kinds: dict[int, tuple[Any, type]] = {}
        self._hookless: list[tuple[nn.Module, dict[str, Any]]] = []  # modules without hooks, and their attributes
        self._attributes: list[tuple[Any, dict[str, Any]]] = []  # objects and theirs
        self._hooked: list[tuple[nn.Module, tuple[Any, ...]]] = []

    def entry(self, holder: Mapping[str, object] | type, key: str) -> None:
        """Watch what a mapping or a class holds under a name, and its contents."""
        if isinstance(holder, type):
            holder = self._spaces.setdefault(holder, vars(holder))
        self._entries.setdefault((id(holder), key), (holder, key))
        self.content(holder.get(key, MISSING))

    def object(self, obj: object, names: Iterable[str]) -> None:
        """Watch attributes of an object or module."""
        attributes = held_by(obj)
        for name in names:
            if name in attributes:
                self.entry(attributes, name)
                continue
            if attributes is not NO_ATTRIBUTES:  # an empty one may get an attribute that hides the class's
                self._entries.setdefault((id(attributes), name), (attributes, name))
            registered = self._registered(attributes, name) if isinstance(obj, nn.Module) else None
            if registered is not None:
                self._entries.setdefault((id(registered), name), (registered, name))
            elif not self._of_class(type(obj), name):
                if not isinstance(obj, nn.Module):
                    self._answer(obj, attributes, name)
                    continue
                for held in map(attributes.__getitem__, REGISTERED):  # `hasattr(self, name)` may become true
                    self._entries.setdefault((id(held), name), (held, name))
        self._kinds[id(obj)] = (obj, type(obj))
        if attributes is not NO_ATTRIBUTES and not isinstance(
            obj, nn.Module
        ):  # `ModelBinding` looks at those of modules
            self._attributes.append((obj, attributes))

    def _answer(self, obj: object, held: Mapping[str, object], name: str) -> None:
        """Watch what an object returns for a name that neither it nor its class holds."""
        other_name = getattr(type(obj), "attribute_map", {}).get(name)  # configs of transformers
        if isinstance(other_name, str) and other_name in held:
            self.entry(held, other_name)
        elif hasattr(type(obj), "__getattr__") or not held:
            self.ask(functools.partial(requested, obj, name))

    def _of_class(self, kind: type, name: str) -> bool:
        """Watch the attribute `name` of an object's classes, up to the first that holds it; return whether one does."""
        for base in kind.__mro__:
            there = name in vars(base)
            if there or name == "forward" or is_own(base.__module__):
                self.entry(base, name)
            if there:
                return not isinstance(vars(base)[name], types.MemberDescriptorType)
        return False

    @staticmethod
    def _registered(held: Mapping[str, Any], name: str) -> Any:
        return next((held[key] for key in ("_parameters", "_buffers") if name in held[key]), None)

    def ask(self, question: Callable[[], object]) -> None:
        """Watch the result of a function, and its contents."""
        answer = question()
        self._requested.append((question, answer))
        self.content(answer)

    def function(self, function: types.FunctionType) -> None:
        """Watch a function's code and defaults."""
        if id(function) not in self._functions:
            self._functions[id(function)] = function
            self.content(function.__defaults__)
            self.content(function.__kwdefaults__)
            if attributes := held_by(function):
                self.content(attributes)

    def code(self, functions: list[types.FunctionType]) -> None:
        """Watch the code of functions of packages."""
        self._of_packages = functions

    def order(self, mapping: Mapping[str, object]) -> None:
        """Watch the keys of a mapping, in order."""
        self._lists.append((mapping.keys(), None))

    def content(self, value: Any) -> None:
        """Watch the contents of a container, partial, method, array or constant tensor."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if type(item) in _PLAIN or id(item) in self._known:
                continue
            if isinstance(item, types.FunctionType):
                continue
            if isinstance(item, torch.Tensor):
                if is_constant(item):
                    self.tensor(item)
                continue
            if is_array(item) and is_bytes_of_array(item):
                self._known.add(id(item))
                self._arrays.append((item, item.tobytes()))
                continue
            if not is_container(item) and may_change(item) and inner(item) is not NONE:
                self._known.add(id(item))
                self._alive.append(item)
                self.ask(functools.partial(_written, item))
                waiting += inner(item)
                continue
            if type(item) in _COUNTING:
                self._requested.append((functools.partial(repr, item), repr(item)))
            if not has_parts(item):
                continue
            self._known.add(id(item))
            self._alive.append(item)
            waiting += parts_of_value(item)
            self._container(item)

    def tensor(self, tensor: torch.Tensor) -> None:
        """Watch the content of a tensor."""
        if id(tensor) not in self._known:
            self._known.add(id(tensor))
            self._tensors.append(tensor)

    def _container(self, container: object) -> None:
        if is_mapping(container):
            if isinstance(container, dict):
                self._dicts.append((container, [*container, *container.values()]))
            else:
                self._requested.append((functools.partial(_items, container), _items(container)))
        elif is_container(container):
            if isinstance(container, set):
                self._sets.append((container, set(container)))
            elif not isinstance(container, tuple | frozenset):
                self._lists.append((container, list(container)))

    def hooks(self, module: nn.Module) -> None:
        """Watch the hooks of a submodule."""
        attributes = held_by(module)
        hooks = tuple(hooks_of(module))
        if any(attributes[key] for key in HOOKS.values()):
            self._hooked.append((module, hooks))
            for _, hook in hooks:
                self.content(hook)
        else:
            self._hookless.append((module, attributes))

    def settle(self) -> None:
        """Prepare what `same` compares. Nothing may be added afterwards."""
        dicts = [(holder, key) for holder, key in self._entries.values() if isinstance(holder, dict)]
        others = [(holder, key) for holder, key in self._entries.values() if not isinstance(holder, dict)]
        self._absent: dict[str, list[dict[str, Any]]] = {}
        for holder, key in dicts:
            if type(holder) is dict and key not in holder:
                self._absent.setdefault(key, []).append(holder)
        held = [(d, k) for d, k in dicts if type(d) is dict and k in d]
        self._holders, self._keys = [d for d, _ in held], [k for _, k in held]
        self._values = [d[k] for d, k in held]
        self._settle_modules()
        self._subclassed = [(d, k, _DICT_GET(d, k, MISSING)) for d, k in dicts if type(d) is not dict]
        self._proxies, self._proxy_keys = [h for h, _ in others], [k for _, k in others]
        self._proxy_values = [h.get(k, MISSING) for h, k in others]
        self._contents = list(map(bytes_of, self._tensors))
        self._called = list(self._functions.values())
        self._codes = list(map(_FUNCTION, self._called))
        self._package_codes = list(map(_CODE, self._of_packages))
        self._orders = [(keys, list(keys)) for keys, was in self._lists if was is None]
        self._lists = [(container, was) for container, was in self._lists if was is not None]

    def _settle_modules(self) -> None:
        """Collect the modules without hooks or a forward of their own: most are, and `same` has one row for each."""
        without = [{id(held) for held in self._absent.get(key, ())} for key in _CALLING]
        plain = [(m, held) for m, held in self._hookless if all(id(held) in known for known in without)]
        self._plain = [(*self._kinds.pop(id(m)), held) for m, held in plain if id(m) in self._kinds]
        known = {id(held) for *_, held in self._plain}
        self._hookless = [(m, held) for m, held in self._hookless if id(held) not in known]
        for key in _CALLING:
            self._absent[key] = [held for held in self._absent.get(key, ()) if id(held) not in known]

    def same(self) -> bool:
        """Return whether everything that is watched is the same object as before, with the same contents."""
        missing, (after, before, backward, before_backward) = itertools.repeat(MISSING), HOOKS.values()
        forward, call, call_impl = _CALLING
        for module, kind, held in self._plain:
            if (
                type(module) is not kind
                or forward in held
                or call in held
                or call_impl in held
                or held[after]
                or held[before]
                or held[backward]
                or held[before_backward]
            ):
                return False
        if not self._same_entries() and not self._equal_numbers():
            return False
        if not all(map(operator.is_, map(PROXY_GET, self._proxies, self._proxy_keys, missing), self._proxy_values)):
            return False
        if not all(map(operator.is_, map(_CODE, self._of_packages), self._package_codes)):
            return False
        if any(held[key] for _, held in self._hookless for key in HOOKS.values()):
            return False
        for obj, kind in self._kinds.values():
            if type(obj) is not kind:
                return False
        if list(map(bytes_of, self._tensors)) != self._contents or global_hooks():
            return False
        if any(held_by(obj) is not was for obj, was in self._attributes):
            return False
        return self._same_contents()

    def _same_entries(self) -> bool:
        try:  # a loop over names of items: in CPython several times faster than `map` over functions of `operator`
            for holder, key, was in zip(self._holders, self._keys, self._values, strict=True):
                if holder[key] is not was:
                    return False
        except KeyError:
            return False
        for key, holders in self._absent.items():
            for holder in holders:
                if key in holder:
                    return False
        return all(_DICT_GET(holder, key, MISSING) is was for holder, key, was in self._subclassed)

    def _same_contents(self) -> bool:
        try:
            if list(map(_FUNCTION, self._called)) != self._codes:
                return False
            for container, was in self._lists:
                if len(container) != len(was) or not all(map(operator.is_, container, was)):
                    return False
            for container, was in self._dicts:
                if len(container) * 2 != len(was) or not all(
                    map(operator.is_, itertools.chain(container, container.values()), was)
                ):
                    return False
            for container, was in self._sets:
                if container != was:
                    return False
            for keys, was in self._orders:
                if list(keys) != was:
                    return False
            for container, was in self._arrays:
                if container.tobytes() != was:
                    return False
            for module, hooks in self._hooked:
                if tuple(hooks_of(module)) != hooks:
                    return False
            for question, was in self._requested:
                now = question()
                if now is not was and (type(now) not in (list, str) or now != was):
                    return False
        except (ValueError, RuntimeError, AttributeError):  # not comparable: compared by value instead
            return False
        return True

    def replaced_code(self) -> list[str]:
        """Return the functions whose code or defaults were replaced."""
        now = map(_FUNCTION, self._called)
        return [
            qualified(f)
            for f, current, was in zip(self._called, now, self._codes, strict=True)
            if current[0] is not was[0]
        ]

    def _equal_numbers(self) -> bool:
        """Return whether all differences are equal numbers and texts, and watch the new objects from now on."""
        if any(key in holder for key, holders in self._absent.items() for holder in holders):
            return False
        now = [holder.get(key, MISSING) for holder, key in zip(self._holders, self._keys, strict=True)]
        subclassed = [(holder, key, _DICT_GET(holder, key, MISSING)) for holder, key, _ in self._subclassed]
        if not all(map(_equal, now, self._values)) or not all(
            _equal(value, was) for (*_, value), (*_, was) in zip(subclassed, self._subclassed, strict=True)
        ):
            return False
        self._values, self._subclassed = now, subclassed
        return True


def _equal(now: object, was: object) -> bool:
    return now is was or (type(now) is type(was) and type(now) in _PLAIN and now == was)


def _written(value: object) -> str:
    """Return what determines a value of a class of Python's standard library, as text."""
    return repr(inner(value))


def _items(mapping: Mapping[Any, object]) -> list[tuple[Any, int]]:
    return [(key, id(item)) for key, item in mapping.items()]
