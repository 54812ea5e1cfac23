"""What a model depends on, watched: snapshots by identity and version, compared at every call in a few microseconds.

That something is not the very thing that it was does not mean that it is another value: then the guard looks closely,
once.
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

from .attributes import HOOKS, global_hooks, hooks_of
from .inner_values import NONE, inner, is_array, is_bytes_of_array, may_change
from .ownership import is_own, qualified
from .values import (
    CONTAINERS,
    MISSING,
    held_by,
    is_constant,
    parts_of_value,
    requested,
)

_FUNCTION = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CODE = operator.attrgetter("__code__")
_VERSION = operator.attrgetter("_version")
_PLAIN = frozenset({bool, int, float, str, type(None)})
_PROXY_GET: Any = types.MappingProxyType.get


class Watched:
    """Collects what is watched; `same` says whether all of it is as it was."""

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
        self._dicts: list[tuple[Any, list[Any]]] = []
        self._sets: list[tuple[Any, Any]] = []
        self._arrays: list[tuple[Any, bytes]] = []
        self._kinds: dict[int, tuple[Any, type]] = {}
        self._hooks: list[Mapping[Any, Any]] = []
        self._hooked: list[tuple[nn.Module, tuple[Any, ...]]] = []

    def entry(self, holder: Mapping[str, Any] | type, key: str) -> None:
        """What a mapping or a class holds under a name, and all that is in it."""
        if isinstance(holder, type):
            holder = self._spaces.setdefault(holder, vars(holder))
        self._entries.setdefault((id(holder), key), (holder, key))
        self.content(holder.get(key, MISSING))

    def object(self, thing: Any, names: Iterable[str]) -> None:
        """Attributes of an object or module."""
        held = held_by(thing)
        for name in names:
            if name in held:
                self.entry(held, name)
                continue
            if held:
                self._entries.setdefault((id(held), name), (held, name))
            registered = self._registered(held, name) if isinstance(thing, nn.Module) else None
            if registered is not None:
                self._entries.setdefault((id(registered), name), (registered, name))
            elif not self._of_class(type(thing), name) and not isinstance(thing, nn.Module):
                self._answer(thing, held, name)
        self._kinds[id(thing)] = (thing, type(thing))

    def _answer(self, thing: Any, held: Mapping[str, Any], name: str) -> None:
        """What an object gives for a name that neither it nor its class has."""
        other_name = getattr(type(thing), "attribute_map", {}).get(name)  # of configs of transformers
        if isinstance(other_name, str) and other_name in held:
            self.entry(held, other_name)
        elif hasattr(type(thing), "__getattr__") or not held:
            self.ask(functools.partial(requested, thing, name))

    def _of_class(self, kind: type, name: str) -> bool:
        """Watch what the classes of an object hold under a name, up to the first that holds something; whether that is
        the answer."""
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

    def ask(self, question: Callable[[], Any]) -> None:
        """The answer to a question, and all that is in it."""
        answer = question()
        self._requested.append((question, answer))
        self.content(answer)

    def function(self, function: types.FunctionType) -> None:
        """A function's code and defaults."""
        if id(function) not in self._functions:
            self._functions[id(function)] = function
            self.content(function.__defaults__)
            self.content(function.__kwdefaults__)
            if held := held_by(function):
                self.content(held)

    def code(self, functions: list[types.FunctionType]) -> None:
        """The code of functions of packages."""
        self._of_packages = functions

    def order(self, mapping: Mapping[str, Any]) -> None:
        """The keys of a mapping, in order."""
        self._lists.append((mapping.keys(), None))

    def content(self, value: Any) -> None:
        """What is in a container, a partial, a method or an array; a tensor's version."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if type(one) in _PLAIN or id(one) in self._known:
                continue
            if isinstance(one, types.FunctionType):
                continue
            if isinstance(one, torch.Tensor):
                if is_constant(one) and not one.is_inference():
                    self._known.add(id(one))
                    self._tensors.append(one)
                continue
            if is_array(one) and is_bytes_of_array(one):
                self._known.add(id(one))
                self._arrays.append((one, one.tobytes()))
                continue
            if not isinstance(one, CONTAINERS) and may_change(one) and inner(one) is not NONE:
                self._known.add(id(one))
                self._alive.append(one)
                self.ask(functools.partial(_written, one))
                waiting += inner(one)
                continue
            if type(one) is itertools.count:
                self._requested.append((functools.partial(repr, one), repr(one)))
            if not isinstance(one, (*CONTAINERS, types.MethodType, functools.partial)):
                continue
            self._known.add(id(one))
            self._alive.append(one)
            waiting += parts_of_value(one)
            self._container(one)

    def _container(self, one: Any) -> None:
        if isinstance(one, dict):
            self._dicts.append((one, [*one, *one.values()]))
        elif isinstance(one, Mapping):
            self._requested.append((functools.partial(_items, one), _items(one)))
        elif isinstance(one, set):
            self._sets.append((one, set(one)))
        elif not isinstance(one, (tuple, frozenset)) and isinstance(one, CONTAINERS):
            self._lists.append((one, list(one)))

    def hooks(self, module: nn.Module) -> None:
        """The hooks of a submodule."""
        held = held_by(module)
        found = tuple(hooks_of(module))
        if any(held[key] for key in HOOKS.values()):
            self._hooked.append((module, found))
            for _, hook in found:
                self.content(hook)
        else:
            self._hooks += [held[key] for key in HOOKS.values()]

    def settle(self) -> None:
        """Nothing more is added: lay out what `same` goes through."""
        dicts = [(holder, key) for holder, key in self._entries.values() if isinstance(holder, dict)]
        others = [(holder, key) for holder, key in self._entries.values() if not isinstance(holder, dict)]
        self._holders, self._keys = [h for h, _ in dicts], [k for _, k in dicts]
        self._values = [h.get(k, MISSING) for h, k in dicts]
        self._proxies, self._proxy_keys = [h for h, _ in others], [k for _, k in others]
        self._proxy_values = [h.get(k, MISSING) for h, k in others]
        self._versions = [tensor._version for tensor in self._tensors]
        self._called = list(self._functions.values())
        self._codes = list(map(_FUNCTION, self._called))
        self._package_codes = list(map(_CODE, self._of_packages))
        self._things, self._types = [t for t, _ in self._kinds.values()], [k for _, k in self._kinds.values()]
        self._orders = [(keys, list(keys)) for keys, was in self._lists if was is None]
        self._lists = [(one, was) for one, was in self._lists if was is not None]

    def same(self) -> bool:
        """Whether nothing that is watched is another thing than it was, or holds others."""
        missing = itertools.repeat(MISSING)
        found = map(dict.get, self._holders, self._keys, missing)
        if not all(map(operator.is_, found, self._values)) and not self._equal_numbers():
            return False
        if not all(map(operator.is_, map(_PROXY_GET, self._proxies, self._proxy_keys, missing), self._proxy_values)):
            return False
        if not all(map(operator.is_, map(_CODE, self._of_packages), self._package_codes)):
            return False
        if any(self._hooks) or not all(map(operator.is_, map(type, self._things), self._types)):
            return False
        if list(map(_VERSION, self._tensors)) != self._versions or global_hooks():
            return False
        return self._same_contents()

    def _same_contents(self) -> bool:
        try:
            if list(map(_FUNCTION, self._called)) != self._codes:
                return False
            for one, was in self._lists:
                if len(one) != len(was) or not all(map(operator.is_, one, was)):
                    return False
            for one, was in self._dicts:
                if len(one) * 2 != len(was) or not all(map(operator.is_, itertools.chain(one, one.values()), was)):
                    return False
            for one, was in self._sets:
                if one != was:
                    return False
            for keys, was in self._orders:
                if list(keys) != was:
                    return False
            for one, was in self._arrays:
                if one.tobytes() != was:
                    return False
            for module, hooks in self._hooked:
                if tuple(hooks_of(module)) != hooks:
                    return False
            for question, was in self._requested:
                now = question()
                if now is not was and (type(now) not in (list, str) or now != was):
                    return False
        except (ValueError, RuntimeError, AttributeError):  # things that do not compare: looked at one by one
            return False
        return True

    def replaced_code(self) -> list[str]:
        """Functions whose code, or defaults, are others than they were."""
        now = map(_FUNCTION, self._called)
        return [
            qualified(f) for f, one, was in zip(self._called, now, self._codes, strict=True) if one[0] is not was[0]
        ]

    def _equal_numbers(self) -> bool:
        """Whether all that differs are numbers and texts that are equal; these are watched from now on."""
        for at, (holder, key) in enumerate(zip(self._holders, self._keys, strict=True)):
            now, was = holder.get(key, MISSING), self._values[at]
            if now is not was:
                if type(now) is not type(was) or type(now) not in _PLAIN or now != was:
                    return False
                self._values[at] = now
        return True


def _written(value: Any) -> str:
    """What decides a value whose class is of Python's library, as text."""
    return repr(inner(value))


def _items(mapping: Mapping[Any, Any]) -> list[tuple[Any, int]]:
    return [(key, id(item)) for key, item in mapping.items()]
