"""How attributes of a model are looked up: what its classes define beside the methods that forward names.

`nn.Module.__call__ = ...`, a new `__getattr__`, or a property that hides a parameter change what forward computes,
although neither its code nor an attribute changes. So does an entry of a module's `__dict__` with the name of a
parameter, buffer or submodule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

from torch import nn

from .names import cell_contents
from .ownership import qualified
from .values import MISSING, NO_ATTRIBUTES, held_by

CALL = "_call_impl"  # what `nn.Module.__call__` runs
_CALLS = (CALL, "_wrapped_call_impl")
_SPECIAL = frozenset(
    f"__{name}__"
    for name in """getattribute getattr get call class getitem missing len iter next reversed contains bool index int
    float hash eq ne lt le gt ge enter exit add radd sub rsub mul rmul truediv rtruediv floordiv mod pow matmul rmatmul
    neg pos abs and or xor invert torch_function torch_dispatch""".split()
)
PROXY_GET: Callable[..., Any] = vars(MappingProxyType)["get"]  # of what `vars` of a class returns
_REGISTERED = ("_parameters", "_buffers", "_modules")


class _Namespace(NamedTuple):
    """A class and what instances hold.

    Attributes:
        kind: The class.
        content: The live mapping of what the class defines.
        was: Its content when it was recorded.
        registered: Names of parameters, buffers and submodules of instances. Every attribute of the class hides them.
        attributes: Names of other attributes of instances. Descriptors with `__set__` hide them.
    """

    kind: type
    content: Mapping[str, object]
    was: Mapping[str, object]
    registered: frozenset[str]
    attributes: frozenset[str]


class Lookup:
    """A snapshot of the classes of a model's modules and objects, compared at every call in a few microseconds."""

    def __init__(self, modules: Mapping[str, nn.Module], objects: Iterable[object]) -> None:
        """Record the classes.

        Args:
            modules: The model's modules by path.
            objects: Its other objects.
        """
        self._paths = [*modules]
        self._held = [held_by(module) for module in modules.values()]
        self._sizes = [*map(len, self._held)]
        self._hidden, self._kept_twice = self._attributes_over()
        registered: dict[type, set[str]] = {}
        attributes: dict[type, set[str]] = {}
        for item in (*modules.values(), *objects):
            for base in type(item).__mro__:
                if base.__module__ != "builtins":
                    here = held_by(item)
                    attributes.setdefault(base, set()).update(here)
                    names = registered.setdefault(base, set())
                    if isinstance(item, nn.Module):
                        names.update(name for kept in _REGISTERED for name in here.get(kept, ()))
        self._classes = [
            _Namespace(base, vars(base), dict(vars(base)), frozenset(names), frozenset(attributes[base] - names))
            for base, names in registered.items()
        ]
        self._contents = [space.content for space in self._classes]
        self._lengths = [len(space.was) for space in self._classes]
        watched = [
            (space.content, key, value)
            for space in self._classes
            for key, value in space.was.items()
            if _is_special(key) or key in space.registered or key in space.attributes
        ]
        self._holders, self._keys = [item[0] for item in watched], [item[1] for item in watched]
        self._values = [item[2] for item in watched]

    def same(self) -> bool:
        """Return whether attributes are looked up as before, as far as a quick comparison shows."""
        if list(map(len, self._contents)) != self._lengths:
            return False
        if self._kept_twice or [*map(len, self._held)] != self._sizes:
            hidden, kept_twice = self._attributes_over()
            if hidden != self._hidden:
                return False
            self._sizes, self._kept_twice = [*map(len, self._held)], kept_twice
        return all(map(operator.is_, map(PROXY_GET, self._holders, self._keys), self._values))

    def changes(self) -> Iterator[str]:
        """Yield a text for each change that may concern forward."""
        for path, name in sorted(self._attributes_over()[0] - self._hidden):
            place = f"module {path!r}" if path else "the model"
            yield f"{place}: an attribute hides its registered {name!r}: `del module.__dict__[{name!r}]`"
        for space in self._classes:
            for key in dict.fromkeys([*space.was, *space.content]):
                was, now = space.was.get(key, MISSING), space.content.get(key, MISSING)
                if not _same_function(was, now) and _decides(space, key, (was, now)):
                    done = "added" if was is MISSING else "removed" if now is MISSING else "replaced"
                    yield f"class {qualified(space.kind)}: its attribute {key} was {done}"

    def _attributes_over(self) -> tuple[set[tuple[str, str]], bool]:
        """Return path and name of what is registered with a module and hidden by a different attribute of it.

        Also return whether something is registered and the same attribute, as parameters of FullyShardedDataParallel.
        """
        over = {
            (path, name): held[name] is value
            for path, held in zip(self._paths, self._held, strict=True)
            for key in _REGISTERED
            for name, value in (held.get(key) or NO_ATTRIBUTES).items()
            if name in held
        }
        return {at for at, same in over.items() if not same}, any(over.values())


def _is_special(name: str) -> bool:
    return name in _CALLS or name in _SPECIAL


def _same_function(was: object, now: object) -> bool:
    """Return whether two values are one, or the same code defined twice, as `GraphModule.recompile` does."""
    if was is now:
        return True
    if not (isinstance(was, FunctionType) and isinstance(now, FunctionType)):
        return False
    around = [
        [
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            *map(cell_contents, function.__closure__ or ()),
        ]
        for function in (was, now)
    ]
    return len(around[0]) == len(around[1]) and all(map(operator.is_, *around))


def _decides(space: _Namespace, key: str, values: tuple[object, object]) -> bool:
    """Return whether a changed entry of a class changes what an instance returns for a name."""
    if _is_special(key) or key in space.registered:
        return True
    return key in space.attributes and any(hasattr(type(value), "__set__") for value in values)
