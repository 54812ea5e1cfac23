"""A snapshot of the state that a forward could change, and its restoration in place.

A copy of the model would not suffice: attributes that forward sets, globals, closures, class attributes, lists and
caches are shared with a copy, or belong to no object. So all objects stay in place, and what changed is set back:
containers, attributes of objects (also `__slots__`), cells of closures, globals that functions of the user's name,
class attributes, generators and iterators. Tensors are watched by version; those that the step is known to update are
copied.
"""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.modules import modules_by_path
from ..operator_calls.overloads import storage_address
from ..staleness.ownership import is_own
from ..torch_private.execution import uncounted_write
from .checksum import Checksum, Checksums
from .iterators import Iterators
from .reached import is_followed, is_open, methods, names_in, plain_attributes, slots_of

_MANY = 100_000  # most objects to follow, and most items of a container to follow
_LARGE = 4_000_000  # most items of a container to copy
_SMALL = 1 << 20  # bytes of tensors that are copied although nothing is known to write to them
_ATOMS = (int, float, complex, str, bytes, type(None), types.BuiltinFunctionType, torch.dtype, torch.device, range)
_ABSENT: Any = object()
_dict: Any = dict  # without types of contents; their own methods, also for objects of subclasses
_set: Any = set


Undo = Callable[[], None]


class SetAttribute(NamedTuple):
    """A tensor that forward assigned to an attribute of a module."""

    path: str
    name: str
    assigned: Checksum
    holder: dict[str, Any]


class Changes(NamedTuple):
    """What a forward changed beyond its results, before the restoration.

    Attributes:
        written: Tensors that it wrote to, and that the step is not known to update.
        attributes: Tensors that it assigned to attributes of modules.
        missed: Kinds of objects that could not be restored.
    """

    written: list[torch.Tensor]
    attributes: list[SetAttribute]
    missed: list[str]


class Snapshot:
    """The state that can be reached from a model and the arguments of a call."""

    def __init__(self, model: nn.Module, given: Iterable[object], updated: Iterable[torch.Tensor]) -> None:
        """Record the state.

        Args:
            model: The live model.
            given: The arguments of its forward.
            updated: Tensors that the step writes to.
        """
        self._paths = {id(vars(module)): path for path, module in modules_by_path(model, each_once=True).items()}
        self._copied = {id(tensor): (tensor, tensor.detach().clone()) for tensor in updated}
        self._watched: list[tuple[torch.Tensor, int, torch.Tensor | None]] = []
        self._undo: list[Undo] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._iterators = Iterators()
        self._missed: list[str] = []
        self._room = _SMALL
        self._seen: dict[int, Any] = {}
        self._walk([*given, *model.modules()])

    def _walk(self, stack: list[Any]) -> None:
        while stack:
            value = stack.pop()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            if len(self._seen) >= _MANY:
                self._missed.append(f"what lies beyond the first {_MANY:,} objects of the model")
                return
            self._seen[id(value)] = value  # keeps the value, so that its id stays valid
            stack.extend(self._note(value))

    def _note(self, value: Any) -> Iterable[Any]:
        """Record a value and return what can be reached from it."""
        kind: object = value  # keeps `value` untyped, as are the contents of containers
        match kind:
            case torch.Tensor():
                self._tensor(value)
            case dict() | list() | set() | collections.deque():
                return self._container(value)
            case tuple() | frozenset():
                return value
            case types.FunctionType():
                return self._function(value) if is_followed(value) else ()
            case types.MethodType():
                return (value.__self__, value.__func__)
            case functools.partial():
                return (value.func, value.args, value.keywords)
            case type():
                return self._class(value) if is_followed(value) else ()
            case ContextVar():
                self._context(value)
            case _:
                return self._object(value)
        return ()

    def _tensor(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._copied or tensor.is_inference():
            return
        size = tensor.numel() * tensor.element_size()
        copied = type(tensor) is torch.Tensor and tensor.layout is torch.strided and size <= self._room
        if copied:
            self._room -= size
        self._watched.append((tensor, tensor._version, tensor.detach().clone() if copied else None))

    def _container(self, value: Any) -> Iterable[Any]:
        if len(value) > _LARGE:
            self._missed.append(f"a {type(value).__name__} of {len(value):,} items")
            return ()
        if isinstance(value, _dict):
            contents: dict[Any, Any] = dict(value)
            self._undo.append(functools.partial(_restore_dict, value, contents, self._entries(contents.values())))
            if id(value) in self._paths:
                self._attributes.append((value, contents))
            items: Iterable[Any] = contents.values()
        else:
            items = list[Any](value)
            self._undo.append(functools.partial(_restore_items, value, items, self._entries(items)))
        return items if len(value) <= _MANY else ()

    def _entries(self, values: Iterable[object]) -> Callable[[Any], Any]:
        """Return a function that gives the replacement for each of these values."""
        for value in values:
            self._iterators.note(value)
        return self._iterators.fresh

    def _named(self, holder: object, attributes: dict[str, Any]) -> Iterable[Any]:
        """Record attributes that are set individually: of classes, modules of Python, objects with slots."""
        fresh = self._entries(attributes.values())

        def undo() -> None:
            for name, was in attributes.items():
                wanted = _ABSENT if was is _ABSENT else fresh(was)
                with suppress(AttributeError, TypeError, ValueError):
                    if getattr(holder, name, _ABSENT) is wanted:
                        continue
                    delattr(holder, name) if wanted is _ABSENT else setattr(holder, name, wanted)

        self._undo.append(undo)
        return [value for value in attributes.values() if value is not _ABSENT]

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield from self._named(cell, {"cell_contents": cell.cell_contents})
        space, names = function.__globals__, names_in(function.__code__)
        global_values = {name: space.get(name, _ABSENT) for name in names}
        fresh = self._entries(global_values.values())
        self._undo.append(functools.partial(_restore_globals, space, global_values, fresh))
        for value in global_values.values():
            if isinstance(value, types.ModuleType):
                if is_own(value.__name__):
                    yield from self._named(value, {n: getattr(value, n, _ABSENT) for n in names})
            elif value is not _ABSENT:
                yield value

    def _class(self, kind: type) -> Iterator[Any]:
        attributes = plain_attributes(kind)

        def undo() -> None:
            for name in plain_attributes(kind).keys() - attributes.keys():
                delattr(kind, name)

        self._undo.append(undo)
        yield from self._named(kind, attributes)
        yield from methods(kind)
        yield from kind.__bases__

    def _context(self, variable: ContextVar[Any]) -> None:
        was = variable.get(_ABSENT)

        def undo() -> None:
            if variable.get(_ABSENT) is not was:
                with suppress(LookupError):  # without a default it cannot be unset
                    variable.set(Context().run(variable.get) if was is _ABSENT else was)

        self._undo.append(undo)

    def _object(self, value: object) -> Iterator[Any]:
        if (generator := _generator(value)) is not None:
            state, setter = generator
            self._undo.append(functools.partial(setter, state))
        elif is_open(type(value)) and not isinstance(value, types.ModuleType):
            yield type(value)
            if isinstance(attributes := getattr(value, "__dict__", None), dict):
                yield attributes
            if slots := slots_of(value):
                yield from self._named(value, slots)

    def restore(self, checksums: Checksums) -> Changes:
        """Restore everything, and return what had changed."""
        attributes = [
            SetAttribute(self._paths[id(holder)], name, checksums.of(value), holder)
            for holder, values in self._attributes
            for name, value in holder.items()
            if isinstance(value, torch.Tensor) and values.get(name) is not value
        ]
        written: list[torch.Tensor] = []
        known = {storage_address(tensor) for tensor, _ in self._copied.values()}
        for tensor, version, copy in self._watched:
            if tensor._version == version:
                continue
            if copy is None:
                written += [] if storage_address(tensor) in known else [tensor]  # views share their version
            elif checksums.of(tensor) != checksums.of(copy):
                written.append(tensor)
                _write(tensor, copy)
        for undo in self._undo:
            undo()
        for tensor, copy in self._copied.values():
            _write(tensor, copy)
        missed = [*self._missed, *(f"an iterator ({kind})" for kind in sorted(self._iterators.missed))]
        return Changes(written, attributes, missed)


def _write(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    with torch.no_grad(), uncounted_write(tensor):
        tensor.detach().copy_(copy)


def _restore_dict(value: dict[Any, Any], contents: dict[Any, Any], fresh: Callable[[Any], object]) -> None:
    if list(value) != list(contents):
        base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        base.clear(value)
        for key, was in contents.items():
            base.__setitem__(value, key, fresh(was))
        return
    for key, was in contents.items():
        wanted = fresh(was)
        if _dict.__getitem__(value, key) is not wanted:
            _dict.__setitem__(value, key, wanted)


def _restore_items(value: Any, contents: list[Any], fresh: Callable[[Any], Any]) -> None:
    wanted = [fresh(was) for was in contents]
    if isinstance(value, _set):
        if value != set(contents) or len(value) != len(contents):
            _set.clear(value)
            _set.update(value, wanted)
    elif len(value) != len(wanted) or any(now is not was for now, was in zip(value, wanted, strict=True)):
        base: Any = list if isinstance(value, list) else collections.deque
        base.clear(value)
        base.extend(value, wanted)


def _restore_globals(space: dict[str, Any], values: dict[str, Any], fresh: Callable[[Any], object]) -> None:
    for name, was in values.items():
        if was is _ABSENT:
            space.pop(name, None)
        elif space.get(name, _ABSENT) is not (wanted := fresh(was)):
            space[name] = wanted


def _generator(value: Any) -> tuple[Any, Callable[[Any], Any]] | None:
    """Return the state of a generator of random numbers or of an array, and its setter."""
    if isinstance(value, random.Random):
        return value.getstate(), value.setstate
    if isinstance(value, torch.Generator):
        return value.get_state(), value.set_state
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        return value.bit_generator.state, functools.partial(setattr, value.bit_generator, "state")
    if isinstance(value, numpy.random.RandomState):
        return value.get_state(), value.set_state
    if isinstance(value, numpy.ndarray) and value.flags.writeable and value.size <= _MANY:
        return value.copy(), functools.partial(numpy.copyto, value)
    return None
