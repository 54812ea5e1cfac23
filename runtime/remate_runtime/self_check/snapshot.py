"""The state that a forward could change, and how it is put back in place, so that the forward leaves nothing behind.

Copies of the model would not do: attributes that forward sets, globals, closures, class attributes, lists and caches
are shared with a copy, or belong to nobody. So everything stays where it is, and what changed is set back: containers,
attributes of objects (with `__slots__`, too), cells of closures, globals that functions of the user's own name, class
attributes, generators and iterators. Tensors are watched by their version; those that the step is known to update are
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

from ..operator_calls.overloads import storage_address
from ..staleness.ownership import is_own
from .checksum import Checksum, Checksums
from .iterators import Iterators
from .reached import is_followed, is_open, methods, names_in, plain_attributes, slots_of

_MANY = 100_000  # objects that are looked at; items of one container that are looked into
_LARGE = 4_000_000  # items of a container that is copied at all
_SMALL = 1 << 20  # bytes of tensors that are copied though nothing is known to write to them
_ATOMS = (int, float, complex, str, bytes, type(None), types.BuiltinFunctionType, torch.dtype, torch.device, range)
_ABSENT: Any = object()

_AUTOGRAD: Any = torch.autograd
_UNCOUNTED = _AUTOGRAD._unsafe_preserve_version_counter  # writes that backward does not see

Undo = Callable[[], None]


class SetAttribute(NamedTuple):
    """A tensor that forward assigned to an attribute of a module."""

    path: str
    name: str
    made: Checksum
    holder: dict[str, Any]


class Changes(NamedTuple):
    """What a forward changed beyond its results, before it was put back.

    Attributes:
        written: Tensors that it wrote to, and that the step is not known to update.
        attributes: Tensors that it assigned to attributes of modules.
        missed: Kinds of objects that could not be put back.
    """

    written: list[torch.Tensor]
    attributes: list[SetAttribute]
    missed: list[str]


class Snapshot:
    """The state reached from a model and the arguments of a call, as it is now."""

    def __init__(self, model: nn.Module, given: Iterable[Any], updated: Iterable[torch.Tensor]) -> None:
        """
        Args:
            model: The live model.
            given: What its forward is called with.
            updated: Tensors that the step writes to.
        """
        self._paths = {id(vars(module)): path for path, module in model.named_modules()}
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
            self._seen[id(value)] = value  # kept, so that its id stays its own
            stack.extend(self._note(value))

    def _note(self, value: Any) -> Iterable[Any]:
        """Remember a value. Returns what is reached from it."""
        match value:
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
        if isinstance(value, dict):
            held = dict(value)
            self._undo.append(functools.partial(_restore_dict, value, held, self._entries(held.values())))
            if id(value) in self._paths:
                self._attributes.append((value, held))
            items: Iterable[Any] = held.values()
        else:
            held = list(value)
            self._undo.append(functools.partial(_restore_items, value, held, self._entries(held)))
            items = held
        return items if len(value) <= _MANY else ()

    def _entries(self, values: Iterable[Any]) -> Callable[[Any], Any]:
        """What a holder of these values gets back for each."""
        for value in values:
            self._iterators.note(value)
        return self._iterators.fresh

    def _named(self, holder: Any, held: dict[str, Any]) -> Iterable[Any]:
        """Attributes that are set one by one: of classes, modules of Python, objects with slots."""
        fresh = self._entries(held.values())

        def undo() -> None:
            for name, was in held.items():
                wanted = _ABSENT if was is _ABSENT else fresh(was)
                with suppress(AttributeError, TypeError, ValueError):
                    if getattr(holder, name, _ABSENT) is wanted:
                        continue
                    delattr(holder, name) if wanted is _ABSENT else setattr(holder, name, wanted)

        self._undo.append(undo)
        return [value for value in held.values() if value is not _ABSENT]

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield from self._named(cell, {"cell_contents": cell.cell_contents})
        space, names = function.__globals__, names_in(function.__code__)
        held = {name: space.get(name, _ABSENT) for name in names}
        fresh = self._entries(held.values())
        self._undo.append(functools.partial(_restore_globals, space, held, fresh))
        for value in held.values():
            if isinstance(value, types.ModuleType):
                if is_own(value.__name__):
                    yield from self._named(value, {n: getattr(value, n, _ABSENT) for n in names})
            elif value is not _ABSENT:
                yield value

    def _class(self, kind: type) -> Iterator[Any]:
        held = plain_attributes(kind)

        def undo() -> None:
            for name in plain_attributes(kind).keys() - held.keys():
                delattr(kind, name)

        self._undo.append(undo)
        yield from self._named(kind, held)
        yield from methods(kind)
        yield from kind.__bases__

    def _context(self, variable: ContextVar[Any]) -> None:
        was = variable.get(_ABSENT)

        def undo() -> None:
            if variable.get(_ABSENT) is not was:
                with suppress(LookupError):  # without a default it cannot be as if it had never been set
                    variable.set(Context().run(variable.get) if was is _ABSENT else was)

        self._undo.append(undo)

    def _object(self, value: Any) -> Iterator[Any]:
        if (generator := _generator(value)) is not None:
            state, put = generator
            self._undo.append(functools.partial(put, state))
        elif is_open(type(value)) and not isinstance(value, types.ModuleType):
            yield type(value)
            if isinstance(held := getattr(value, "__dict__", None), dict):
                yield held
            if slots := slots_of(value):
                yield from self._named(value, slots)

    def restore(self, checksums: Checksums) -> Changes:
        """Put everything back as it was. Returns what had changed."""
        attributes = [
            SetAttribute(self._paths[id(holder)], name, checksums.of(value), holder)
            for holder, held in self._attributes
            for name, value in holder.items()
            if isinstance(value, torch.Tensor) and held.get(name) is not value
        ]
        written = []
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
    with torch.no_grad(), _UNCOUNTED(tensor):
        tensor.detach().copy_(copy)


def _restore_dict(value: dict[Any, Any], held: dict[Any, Any], fresh: Callable[[Any], Any]) -> None:
    if list(value) != list(held):
        base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        base.clear(value)
        for key, was in held.items():
            base.__setitem__(value, key, fresh(was))
        return
    for key, was in held.items():
        wanted = fresh(was)
        if dict.__getitem__(value, key) is not wanted:
            dict.__setitem__(value, key, wanted)


def _restore_items(value: Any, held: list[Any], fresh: Callable[[Any], Any]) -> None:
    wanted = [fresh(was) for was in held]
    if isinstance(value, set):
        if value != set(held) or len(value) != len(held):
            set.clear(value)
            set.update(value, wanted)
    elif len(value) != len(wanted) or any(now is not was for now, was in zip(value, wanted, strict=True)):
        base: Any = list if isinstance(value, list) else collections.deque
        base.clear(value)
        base.extend(value, wanted)


def _restore_globals(space: dict[str, Any], held: dict[str, Any], fresh: Callable[[Any], Any]) -> None:
    for name, was in held.items():
        if was is _ABSENT:
            space.pop(name, None)
        elif space.get(name, _ABSENT) is not (wanted := fresh(was)):
            space[name] = wanted


def _generator(value: Any) -> tuple[Any, Callable[[Any], Any]] | None:
    """The state of a generator of random numbers or of an array, and what sets it."""
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
