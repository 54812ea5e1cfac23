"""Values as a digest describes them: simple values in full, containers and objects of the user's classes at any depth,
functions by name and source, others by class.

Digest and guard compare these descriptions only.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import inspect
import itertools
import json
import math
import operator
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import torch
from torch import nn

from ..bind.containers import is_mapping
from ..format.json_values import is_list, is_object, is_tuple
from ..operator_calls.overloads import SHORT_DTYPES
from ..torch_private.execution import DisableTorchFunction
from .inner_values import NONE, array_hash, inner, is_array, is_bytes_of_array
from .ownership import is_own, name_in_value

_LONG = 200  # longest text that is written out
MAX_CONSTANT = 65_536  # elements of a constant that a file may hold
_MANY = 64  # most simple values in an attribute that are written out
_DEEP = 12  # deepest nesting of containers that is followed
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
_UNSEEN = (torch.Tensor, nn.Module, torch.Generator, torch.device, torch.cuda.Stream)
_TORCHS = (torch.finfo, torch.iinfo, torch.memory_format, torch.layout)
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_BY_TEXT = (bytes, range, slice, re.Pattern, itertools.count, itertools.repeat, *_GETTERS, *_TORCHS)
_METHODS: tuple[Any, ...] = (staticmethod, classmethod)
CONTAINERS = (list, tuple, set, frozenset, collections.deque, Mapping)


class Seen(Protocol):
    """The code that reads a value."""

    def source(self, function: object) -> str | None:
        """Return the hash of a function or class of the user's; None for any other."""
        ...

    def fields(self, obj: object) -> Sequence[str]:
        """Return the attributes that forward reads of an object."""
        ...


class Opaque:
    """A value that a digest does not contain: the binding compares tensors and modules."""


OPAQUE = Opaque()
ABSENT = {"absent": True}
MISSING: Any = object()
NO_ATTRIBUTES: dict[str, Any] = {}  # never written to


def short_hash(text: str) -> str:
    """Return a 64-bit hash, which is enough to notice a change. It is not meant to resist deliberate collisions."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hashed(described: object) -> str:
    """Return a hash of a description. Descriptions that are `same` have the same hash."""
    return short_hash(json.dumps(_without_types(described)))


def recorded(value: object, seen: Seen, tensors: bool = False, inline: bool = True, ordered: bool = True) -> Any:
    """Return what a digest records for a value, or OPAQUE.

    Args:
        value: The value.
        seen: The code that reads it.
        tensors: Describe a tensor too. Tensors in containers are always described, as far as a step may contain them.
        inline: Describe an object with its attributes, else by its class only.
        ordered: The order of a dict matters.
    """
    if isinstance(value, torch.Tensor):
        return _tensor(value) if tensors else OPAQUE
    if not inline and has_fields(value) and not is_container(value):
        return {"object": name_in_value(type(value))}
    described = _Describing(seen).value(value, (), ordered)
    if (is_list(described) or is_object(described)) and _count(described) > _MANY:
        length = len(value) if is_container(value) else _count(described)
        return {"length": length, "hash": hashed(described)}
    return described


class _Describing:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def value(self, value: object, above: tuple[int, ...], ordered: bool) -> Any:
        """Describe a value.

        Args:
            value: The value.
            above: Ids of the containers around it.
            ordered: The order of a dict matters.
        """
        plain = _plain(value)
        if plain is not MISSING:
            if isinstance(value, enum.Enum):
                self._seen.source(type(value))  # follows its methods
                if (parts := inner(value)) is not NONE and id(value) not in above:
                    return {**plain, "of": self._items(parts, (*above, id(value)), ordered)}
            return plain
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, _UNSEEN) or len(above) > _DEEP:
            return OPAQUE
        if id(value) in above:
            return {"object": name_in_value(type(value))}
        above = (*above, id(value))
        if type(value) in _BY_TEXT:
            return _text(repr(value))
        if is_partial(value):
            return {"is": "functools.partial", "of": self._items(_partial(value), above, ordered)}
        if is_array(value) and is_bytes_of_array(value):
            return {"hash": array_hash(value)}
        function = unwrapped(value)
        if isinstance(function, (type, *FUNCTIONS)) or _is_compiled_function(function):
            return self._function(function, above, ordered)
        if has_fields(value):
            return self._object(value, above, ordered)
        if is_container(value):
            return self._container(value, above, ordered)
        parts = inner(value)
        if parts is not NONE:
            return {"object": name_in_value(type(value)), "items": self._items(parts, above, ordered)}
        return {"object": name_in_value(type(value))}

    def _items(self, items: Sequence[object], above: tuple[int, ...], ordered: bool) -> list[Any]:
        described = [self.value(item, above, ordered) for item in items]
        return [None if item is OPAQUE else item for item in described]

    def _function(self, function: object, above: tuple[int, ...], ordered: bool) -> dict[str, Any]:
        source = self._seen.source(function)
        described: dict[str, Any] = {"is": name_in_value(function), **({"source": source} if source else {})}
        holder = getattr(function, "__self__", None)
        if isinstance(function, types.MethodType) and (has_fields(holder) or is_container(holder)):
            described["of"] = self.value(holder, above, ordered)
        return described

    def _object(self, value: object, above: tuple[int, ...], ordered: bool) -> dict[str, Any]:
        """Describe an object by the attributes that forward reads, the methods that they hide, and its contents."""
        ordered = ordered and not is_config(value)
        names = dict.fromkeys([*self._seen.fields(value), *hiding(value)])
        fields = {name: self._field(value, name, above, ordered) for name in sorted(names)}
        described: dict[str, Any] = {"object": name_in_value(type(value))}
        if fields:
            described["fields"] = {"dict": fields}
        if is_container(value):
            described["items"] = self._container(value, above, ordered)
            if described["items"] is OPAQUE:
                del described["items"]
        return described

    def _field(self, value: object, name: str, above: tuple[int, ...], ordered: bool) -> Any:
        content = attribute(value, name)
        described = ABSENT if content is MISSING else self.value(content, above, ordered)
        return None if described is OPAQUE else described

    def _container(self, value: Any, above: tuple[int, ...], ordered: bool) -> Any:
        if is_mapping(value):
            return self._mapping(value, above, ordered)
        described = [self.value(item, above, ordered) for item in tuple(value)]
        if any(item is OPAQUE for item in described):
            return {"length": len(value)}
        return sorted(described, key=json.dumps) if isinstance(value, (set, frozenset)) else described

    def _mapping(self, value: Mapping[Any, object], above: tuple[int, ...], ordered: bool) -> Any:
        pairs = [(key, self.value(item, above, ordered)) for key, item in dict(value.items()).items()]
        if any(item is OPAQUE for _, item in pairs):
            return {"length": len(pairs)}
        if all(type(key) is str and len(key) <= _LONG for key, _ in pairs):
            return {"dict": dict(pairs if ordered else sorted(pairs))}
        described = [[self.value(key, above, ordered), item] for key, item in pairs]
        if any(key is OPAQUE for key, _ in described):
            return {"length": len(pairs)}
        return {"pairs": described if ordered else sorted(described, key=json.dumps)}


def _plain(value: object) -> Any:
    """Return a simple value as itself; MISSING for any other."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return {"is": f"{name_in_value(type(value))}.{value.name}"}
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else {"hash": short_hash(str(value))}
    if isinstance(value, float):
        return float.__pos__(value) if math.isfinite(value) else {"float": str(float.__pos__(value))}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]} if math.isfinite(abs(value)) else {"hash": short_hash(repr(value))}
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, torch.dtype):
        return {"dtype": SHORT_DTYPES[value]} if value in SHORT_DTYPES else {"is": str(value)}
    return MISSING


def _text(value: str) -> Any:
    written = len(value) <= _LONG and not any("\ud800" <= letter <= "\udfff" for letter in value)
    return value if written else {"length": len(value), "hash": short_hash(value)}


def _tensor(value: torch.Tensor) -> Any:
    """Return a hash of a tensor's contents if a step could contain it as a constant."""
    with DisableTorchFunction():  # a trace may be active
        if not is_constant(value):
            return OPAQUE
        numbers: Any = value  # torch declares `tolist` without types
        return {"hash": short_hash(f"{value.dtype}{list(value.shape)}{numbers.tolist()}")}


def is_constant(value: object) -> bool:
    """Return whether forward reads this tensor as a constant of the step, unless a module registers it."""
    return (
        type(value) is torch.Tensor
        and not value.requires_grad
        and value.layout is torch.strided
        and value.device.type != "meta"
        and value.numel() <= MAX_CONSTANT
    )


def is_container(value: object) -> TypeGuard[Collection[Any]]:
    """Return whether a value is a container whose items are described."""
    return isinstance(value, CONTAINERS)


def is_partial(value: object) -> TypeGuard[functools.partial[Any]]:
    """Return whether a value is a partial function."""
    return isinstance(value, functools.partial)


def _partial(value: functools.partial[Any]) -> list[Any]:
    return [value.func, *value.args, *(item for pair in sorted(value.keywords.items()) for item in pair)]


def has_parts(value: object) -> bool:
    """Return whether a value is of a kind whose parts `parts_of_value` yields."""
    return isinstance(value, (functools.partial, types.MethodType, *CONTAINERS))


def parts_of_value(value: object) -> Iterator[Any]:
    """Yield what the description of a value includes, except attributes of objects."""
    if is_partial(value):
        yield from (value.func, value.args, value.keywords)
    elif is_mapping(value):
        yield from dict(value.items()).values()
    elif is_container(value):
        yield from tuple(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)


def unwrapped(function: object) -> Any:
    """Return the original of a function that torch.compile wraps."""
    return inspect.getattr_static(function, "_torchdynamo_orig_callable", function)


def _is_compiled_function(value: object) -> bool:
    return not isinstance(value, nn.Module) and inspect.getattr_static(value, "__code__", None) is not None


def is_config(value: object) -> bool:
    """Return whether an object is a config whose fields are compared individually."""
    kind = type(value)
    if isinstance(value, (type, torch.Tensor, nn.Module, enum.Enum)):
        return False
    named = any(
        base.__name__ in ("PretrainedConfig", "PreTrainedConfig", "Namespace", "SimpleNamespace")
        for base in kind.__mro__
    )
    return named or dataclasses.is_dataclass(kind)


def has_fields(value: object) -> bool:
    """Return whether an object is compared by the attributes that forward reads: the user's class, or a config."""
    if isinstance(value, (type, nn.Module, torch.Tensor, enum.Enum, *FUNCTIONS)):
        return False
    if is_tuple(value) and hasattr(value, "_fields"):
        return False
    return is_config(value) or is_own(type(value).__module__)


def hiding(value: object) -> Iterator[str]:
    """Yield the methods of an object's class that its attributes hide: `obj.method = lambda …`."""
    attributes = inspect.getattr_static(value, "__dict__", None)
    names: Iterable[Any] = object.__getattribute__(value, "__dict__") if attributes is not None else ()
    for name in names:
        member = inspect.getattr_static(type(value), name, MISSING) if isinstance(name, str) else MISSING
        if isinstance(member, types.FunctionType | staticmethod | classmethod):
            yield name


def attribute(obj: object, name: str) -> Any:
    """Return the value of `obj.name` without side effects; MISSING without such an attribute.

    A method is returned as the function, a property as its getter, a cached property as its value, which is not cached
    here.
    """
    attributes = held_by(obj)
    if name in attributes:
        return attributes[name]
    if isinstance(obj, nn.Module):
        for registered in ("_parameters", "_buffers", "_modules"):
            if name in attributes.get(registered, ()):
                return attributes[registered][name]
    member = inspect.getattr_static(type(obj), name, MISSING)
    if (member is MISSING and not isinstance(obj, nn.Module)) or inspect.ismemberdescriptor(member):
        return requested(obj, name)  # an object with `__getattr__`, or a slot
    if issubclass(type(member), functools.cached_property):
        try:
            return member.func(obj)
        except Exception:  # the user's code failed
            return MISSING
    return underlying(member)


def held_by(obj: object) -> dict[str, Any]:
    """Return the attributes of an object itself, `NO_ATTRIBUTES` of one that can have none (`__slots__`).

    Forward's reads do not record this one.
    """
    try:
        attributes: Mapping[str, Any] = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return NO_ATTRIBUTES
    return attributes if isinstance(attributes, dict) else NO_ATTRIBUTES


def requested(obj: object, name: str) -> Any:
    """Return what an object answers for a name; MISSING if it does not."""
    try:
        return getattr(obj, name, MISSING)
    except Exception:  # the user's `__getattr__` failed
        return MISSING


def underlying(member: Any) -> Any:
    """Return the function of a static method, class method or property; other values as they are."""
    if isinstance(member, _METHODS):
        return member.__func__
    return member.fget if isinstance(member, property) else member


def same(first: object, second: object) -> bool:
    """Compare descriptions: 1 equals 1.0, True does not equal 1, and dicts have an order."""
    if first is OPAQUE or second is OPAQUE:
        return first is second
    if is_object(first) and is_object(second):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if is_list(first) and is_list(second):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def accepts(was: object, now: object) -> bool:
    """Return whether a value is the recorded one, or one of the two recorded ones."""
    if is_object(was) and "either" in was:
        return any(same(item, now) for item in was["either"])
    return same(was, now)


def either(before: object, after: object) -> Any:
    """Return what a digest records for a container that forward fills at its first call."""
    filled = not same(before, after) and all(isinstance(value, list) or _is_mapping(value) for value in (before, after))
    return {"either": [before, after]} if filled else after


def _is_mapping(described: object) -> bool:
    return is_object(described) and not described.keys().isdisjoint(("dict", "pairs", "length"))


def _without_types(described: object) -> Any:
    if isinstance(described, float) and described.is_integer():
        return int(described)
    if is_object(described):
        return {key: _without_types(item) for key, item in described.items()}
    return [_without_types(item) for item in described] if is_list(described) else described


def _count(described: object) -> int:
    if is_object(described):
        return sum(map(_count, described.values()))
    return sum(map(_count, described)) if is_list(described) else 1
