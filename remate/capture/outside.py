"""State outside of modules that forward changes while it is traced: globals, closures, defaults, class attributes,
objects and iterators. It is restored after a trace. Code that computes with it is refused."""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from remate_runtime.bind import modules_by_path
from remate_runtime.format import is_list, is_object, is_tuple
from remate_runtime.staleness import is_own
from remate_runtime.torch_private.pytree import tree_leaves

from ..errors import CaptureError
from . import lru_caches
from .states import has_state, slots_of, state_of

_MANY = 20_000  # values to visit
_ATOMS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Tensor, types.ModuleType)
_CONTAINERS = (dict, list, set, collections.deque)
_OPENED = frozenset({"types", "collections", "argparse"})  # of Python itself: SimpleNamespace, UserDict, Namespace
_ABSENT: Any = object()
_OF_TORCH = frozenset(vars(nn.Module()))


class Outside:
    """A snapshot of the state that the user's functions reach from the modules of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._seen: dict[int, Any] = {}
        self._named: list[tuple[str, Any, dict[str, Any]]] = []  # label, holder of names, their values
        self._contents: list[tuple[str, Any, Any]] = []
        self._states: list[tuple[str, Any, str]] = []  # of values that cannot be restored: iterators, arrays, …
        self._classes: list[tuple[type, frozenset[str]]] = []
        self._waiting: list[tuple[str, Any]] = []
        self._lru_caches = lru_caches.sizes()
        for path, module in modules_by_path(model, each_once=True).items():
            own = ((name, v) for name, v in vars(module).items() if name not in _OF_TORCH)
            self._waiting += [(f"attribute {f'{path}.{name}'.lstrip('.')!r}", value) for name, value in own]
            self._waiting.append((type(module).__qualname__, type(module)))
            hooks = (hook for key in _OF_TORCH if key.endswith("_hooks") for hook in _values(vars(module).get(key)))
            self._waiting += [("a hook", hook) for hook in hooks]
        while self._waiting and len(self._seen) < _MANY:
            self._look(*self._waiting.pop())

    def _look(self, label: str, value: Any) -> None:
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.MethodType):
            self._waiting += [(label, value.__self__), (label, value.__func__)]
        elif isinstance(value, functools.partial):
            self._waiting += [(label, value.func), (label, value.args), (label, value.keywords)]
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif _is_container(value):
            self._contents.append((label, value, copy.copy(value)))
            self._waiting += [(label, item) for item in _values(value)]
        elif is_tuple(value) or _is_frozen_set(value):
            self._waiting += [(label, item) for item in value]
        elif has_state(value):
            self._states.append((label, value, state_of(value)))
        elif _wraps(value):
            self._waiting.append((label, value.__wrapped__))
        elif not isinstance(value, nn.Module) and (is_own(type(value).__module__) or type(value).__module__ in _OPENED):
            self._waiting += [(label, getattr(value, "__dict__", None)), (label, type(value))]
            for name, held in slots_of(value).items():
                self._named.append((label, value, {name: held}))
                self._waiting.append((label, held))

    def _function(self, function: types.FunctionType) -> None:
        if not is_own(function.__module__ or ""):
            return
        name = function.__qualname__
        self._waiting += [
            (f"a default of {name}", function.__defaults__),
            (f"a default of {name}", function.__kwdefaults__),
            (f"an attribute of {name}", vars(function)),
        ]
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            label = f"{variable!r} in the closure of {name}"
            try:
                held = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._named.append((label, cell, {"cell_contents": held}))
            self._waiting.append((label, held))
        names = list(dict.fromkeys(_names(function.__code__)))
        self._note("", function.__globals__, [word for word in names if not hasattr(builtins, word)])
        for module in (function.__globals__.get(word) for word in names):
            if isinstance(module, types.ModuleType) and is_own(module.__name__):
                self._note(
                    f"{module.__name__}.",
                    vars(module),
                    [word for word in names if word in vars(module)],
                )

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_own(base.__module__):
                self._classes.append((base, frozenset(vars(base))))
                for name, value in vars(base).items():
                    inner = getattr(value, "__func__", getattr(value, "fget", value))
                    if isinstance(inner, types.FunctionType) or _wraps(inner):
                        self._waiting.append((name, inner))
                    elif not name.startswith("__"):
                        self._named.append((f"attribute {base.__qualname__}.{name}", base, {name: value}))
                        self._waiting.append((f"attribute {base.__qualname__}.{name}", value))

    def _note(self, label: str, holder: dict[str, Any], names: list[str]) -> None:
        """Record globals, including undefined ones."""
        for name in names:
            held = holder.get(name, _ABSENT)
            self._named.append((f"global {f'{label}{name}'!r}", holder, {name: held}))
            if held is not _ABSENT:
                self._waiting.append((self._named[-1][0], held))

    def changed(self) -> list[Changed]:
        """Return the differences from the snapshot."""
        changes = [
            Changed(label, holder, name, _get(holder, name))
            for label, holder, held in self._named
            for name, was in held.items()
            if not _equal(_get(holder, name), was)
        ]
        for base, names in self._classes:
            new = [name for name in vars(base) if name not in names and not name.startswith("__")]
            changes += [Changed(f"attribute {base.__qualname__}.{name}", base, name, vars(base)[name]) for name in new]
        for label, container, contents in self._contents:
            if is_object(container) and contents.keys() <= container.keys():
                keys = [key for key in container if not _equal(container[key], contents.get(key, _ABSENT))]
                changes += [Changed(label, container, key, container[key]) for key in keys]
            elif is_list(container) and len(container) == len(contents):
                changes += [
                    Changed(label, container, at, item)
                    for at, (item, was) in enumerate(zip(container, contents, strict=True))
                    if not _equal(item, was)
                ]
            elif _differ(container, contents):
                changes.append(Changed(label, container, None))
        changes = [change._replace(tensors=_keeps_tensors(change)) for change in changes]
        return changes + [
            Changed(label, change, None) for label, change, state in self._states if state_of(change) != state
        ]

    def restore(self, constants: bool = False) -> None:
        """Restore everything but iterators and arrays. constants: keep new constant tensors in containers, such as
        caches."""
        for _, holder, held in self._named:
            for name, was in held.items():
                if _get(holder, name) is not was:
                    _put(holder, name, was)
        for _, container, contents in self._contents:
            if constants and is_object(container) and all(key in container for key in contents):
                added = {k: v for k, v in container.items() if k not in contents and _is_constant(v)}
                contents = {**contents, **added}
            if _differ(container, contents):
                _fill(container, contents)
        for base, names in self._classes:
            for name in [name for name in vars(base) if name not in names and not name.startswith("__")]:
                delattr(base, name)
        lru_caches.forget(self._lru_caches, _is_traced)


class Changed(NamedTuple):
    """Something that forward changes.

    Attributes:
        label: Its name in errors.
        holder: The object that holds it.
        name: Its name or key in the holder; None for the holder itself.
        now: Its new value.
        tensors: Whether forward stores tensors there, for use outside of the step.
    """

    label: str
    holder: Any
    name: Any
    now: Any = None
    tensors: bool = False

    def before(self) -> Any:
        """Return the value before the change, once it is restored."""
        return self.holder if self.name is None else _get(self.holder, self.name)


def judge(changed: Sequence[Changed], run: Callable[[], object]) -> None:
    """Refuse state that forward changes and computes with. Warn of state that it only counts.

    Args:
        changed: The changes of a call of forward.
        run: Calls forward once, without data.

    Raises:
        CaptureError: A later call is another step, or may be.
    """
    numbers = [change for change in changed if change.name is not None and type(change.now) in (int, float)]
    others = [change for change in changed if not change.tensors and not any(change is number for number in numbers)]
    refuse_used(numbers, run, [change.label for change in others])
    if changed:
        some = ", ".join(dict.fromkeys(change.label for change in changed[:4]))
        warnings.warn(
            f"forward changes {some}, and computes nothing with it: a scheduled step does not change it; change it in "
            "the loop",
            UserWarning,
            stacklevel=6,
        )


def refuse_used(numbers: Sequence[Changed], run: Callable[[], object], others: Sequence[str] = ()) -> None:
    """Raise CaptureError for numbers that forward changes and computes with, and for the labels in `others`.
    run: see `judge`."""
    used = [change.label for change in numbers if _is_used(change, run)]
    labels = list(dict.fromkeys([*others, *used]))
    if labels:
        raise CaptureError(
            f"forward changes what it computes with from call to call ({', '.join(labels[:4])}): a schedule would "
            "compute with it as it was when planned",
            hint="count in the training loop, outside of forward, and let forward read a buffer or tensor that the "
            "loop writes",
        )


class _Counted(int):
    """A number that records uses other than counting."""

    uses: list[str]


class _CountedFloat(float):
    uses: list[str]


def _counting(kind: Any) -> None:
    base = int if kind is _Counted else float

    def kept(name: str) -> Any:
        def run(self: Any, other: Any) -> Any:
            result = kind(getattr(base, name)(self, other))
            result.uses = self.uses
            return result

        return run

    def used(name: str) -> Any:
        def run(self: Any, *args: Any) -> Any:
            self.uses.append(name)
            return getattr(base, name)(self, *args)

        return run

    for name in ("__add__", "__radd__", "__sub__"):
        setattr(kind, name, kept(name))
    for name in (*_USES, *(("__index__",) if base is int else ())):
        setattr(kind, name, used(name))


_USES = (
    *("__bool__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__floordiv__", "__mod__", "__pow__", "__rpow__", "__neg__", "__float__", "__int__", "__hash__"),
    *("__rsub__", "__rmod__", "__rfloordiv__", "__abs__"),
)
_counting(_Counted)
_counting(_CountedFloat)


def _is_used(change: Changed, run: Callable[[], object]) -> bool:
    was = _get(change.holder, change.name)
    number = change.now if was is _ABSENT else was
    inherited = hasattr(change.holder, "__dict__") and change.name not in vars(change.holder)
    uses: list[str] = []
    counted: Any = (_Counted if type(number) is int else _CountedFloat)(number)
    counted.uses = uses
    _put(change.holder, change.name, counted)
    try:
        run()
    finally:
        _put(change.holder, change.name, was)
        if inherited and change.name in vars(change.holder):
            delattr(change.holder, change.name)
    return bool(uses)


def _keeps_tensors(change: Changed) -> bool:
    """Whether the changed container or name now holds tensors, for use outside of the step."""
    value = change.holder if change.name is None else _get(change.holder, change.name)
    leaves = tree_leaves(list(value) if issubclass(type(value), collections.deque) else value)
    return (
        bool(leaves)
        and all(isinstance(leaf, torch.Tensor | int | float) for leaf in leaves)
        and any(isinstance(leaf, torch.Tensor) for leaf in leaves)
    )


def _differ(container: Any, contents: Any) -> bool:
    if is_object(container) and list(container) != list(contents):
        return True
    pairs = zip(_values(container), _values(contents), strict=False)
    return len(container) != len(contents) or not all(_equal(before, now) for before, now in pairs)


def _fill(container: Any, contents: Any) -> None:
    container.clear()
    container.update(contents) if issubclass(type(container), dict | set) else container.extend(contents)


def _is_constant(value: object) -> bool:
    leaves = tree_leaves(value)
    return bool(leaves) and all(
        isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor | FunctionalTensor) for leaf in leaves
    )


def _is_traced(value: object) -> bool:
    leaves = tree_leaves(value) if isinstance(value, tuple | list) else [value]
    return any(isinstance(leaf, FakeTensor | FunctionalTensor) for leaf in leaves)


def _put(holder: Any, name: Any, value: Any) -> None:
    if is_list(holder):
        holder[name] = value
    elif not is_object(holder):
        setattr(holder, name, value) if value is not _ABSENT else delattr(holder, name)
    elif value is _ABSENT:
        holder.pop(name, None)
    else:
        holder[name] = value


def _is_container(value: object) -> TypeGuard[Collection[Any]]:
    return isinstance(value, _CONTAINERS)


def _is_frozen_set(value: object) -> TypeGuard[frozenset[Any]]:
    return isinstance(value, frozenset)


def _wraps(value: object) -> bool:
    """Whether the value wraps a function. Does not call a user's `__getattr__`."""
    return inspect.getattr_static(value, "__wrapped__", _ABSENT) is not _ABSENT


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _values(held: Any) -> list[Any]:
    return list(held.values()) if is_object(held) else list(held or ())


def _get(holder: Any, name: Any) -> Any:
    if is_object(holder):
        return holder.get(name, _ABSENT)
    if is_list(holder):
        return holder[name]
    return vars(holder).get(name, _ABSENT) if isinstance(holder, type) else getattr(holder, name, _ABSENT)


def _equal(left: object, right: object) -> bool:
    if left is right:
        return True
    if isinstance(left, int | float | str | bool | type(None)) and type(left) is type(right):
        return left == right or (left != left and right != right)
    return False
