"""State of a model outside its parameters and buffers. It is set up for the tracer and restored afterwards."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn import Module

from remate_runtime.bind import modules_by_path
from remate_runtime.format import is_list
from remate_runtime.staleness import held_by
from remate_runtime.support.callers import frames_to_caller
from remate_runtime.support.quantities import size
from remate_runtime.torch_private.pytree import tree_leaves

from .assigned import assigned_at
from .places import frame_above
from .plain_attributes import is_plain
from .replaced_attributes import replaced_attributes

_NOTHING: Any = object()
_REGISTERED = ("_parameters", "_buffers")  # the tracer restores these itself


@contextmanager
def attributes_as_buffers(model: Module) -> Generator[frozenset[tuple[int, str]]]:
    """Register plain tensor attributes (`self.scale = torch.ones(4)`) as buffers in the `with` block. Yields (id of the
    module, name) of each.

    State that starts as one tensor (`self.h = self.c = zeros`) is registered as several, because a later call has
    several.
    """
    moved: list[tuple[Module, str, torch.Tensor]] = []
    shadows: list[tuple[type, str, Any]] = []
    met: set[int] = set()
    try:
        for module in model.modules():
            for name, value in list(module.__dict__.items()):
                if isinstance(value, torch.Tensor) and value.is_leaf and not value.requires_grad:
                    moved.append((module, name, value))
                    del module.__dict__[name]
                    again = id(value) in met and assigned_at(module, name)
                    _buffers(module)[name] = value.clone() if again else value
                    met.add(id(value))
        borrowed = frozenset((id(module), name) for module, name, _ in moved)
        for module, name, _ in moved:
            shadows += _taken_defaults(model, type(module), name, borrowed)
        yield frozenset((id(module), name) for module, name, _ in moved)
    finally:
        for kind, name, default in shadows:
            setattr(kind, name, default)
        for module, name, value in moved:
            _buffers(module).pop(name, None)
            module.__dict__[name] = value


def _buffers(module: Module) -> dict[str, torch.Tensor | None]:
    return held_by(module)["_buffers"]


def _parameters(module: Module) -> dict[str, torch.Tensor | None]:
    return held_by(module)["_parameters"]


def _taken_defaults(
    model: Module, kind: type, name: str, borrowed: frozenset[tuple[int, str]]
) -> list[tuple[type, str, Any]]:
    """Remove defaults in classes (`mask = None`), which would shadow the buffers, if all modules of the class have a
    tensor. Returns what was removed."""
    taken: list[tuple[type, str, Any]] = []
    for base in kind.__mro__:
        if name in vars(base) and all((id(m), name) in borrowed for m in model.modules() if isinstance(m, base)):
            taken.append((base, name, vars(base)[name]))
            delattr(base, name)
    return taken


class Attributes:
    """A snapshot of the attributes and hooks of all modules, to restore after a trace."""

    def __init__(self, model: Module, borrowed: frozenset[tuple[int, str]] = frozenset()) -> None:
        """Take a snapshot. borrowed: attributes that are registered as buffers."""
        self._borrowed = borrowed
        self._names = {id(module): name for name, module in modules_by_path(model, each_once=True).items()}
        self._saved = [(module, dict(module.__dict__), dict(_buffers(module))) for module in model.modules()]
        self._parameters = [(module, dict(_parameters(module))) for module in model.modules()]
        self._contents = [
            (self._path(module, name), value, value.copy())
            for module, attributes, _ in self._saved
            for name, value in attributes.items()
            if type(value) in (list, set, dict, OrderedDict) and name not in _REGISTERED
        ]

    def reassigned_buffers(self) -> Iterator[tuple[str, torch.Tensor, Any]]:
        """Yield (name, old tensor, new value) of buffers that forward assigned."""
        for module, _, buffers in self._saved:
            for name, old in buffers.items():
                new = _buffers(module).get(name)
                if old is not None and new is not old and (id(module), name) not in self._borrowed:
                    yield self._path(module, name), old, new

    def reassigned_parameters(self) -> Iterator[tuple[Module, str]]:
        """Yield (module, name) of parameters that forward assigned, added or removed."""
        for module, before in self._parameters:
            now = _parameters(module)
            for name in {**before, **now}:
                if now.get(name) is not before.get(name):
                    yield module, name

    def copy_buffers(self, names: Collection[str]) -> None:
        """Replace buffers by copies until `restore`."""
        for module, _, buffers in self._saved:
            for name, old in buffers.items():
                if self._path(module, name) in names and old is not None:
                    _buffers(module)[name] = old.clone()

    def stored(self) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) of attributes that forward set to tensors or containers of tensors, other than the
        model's own parameters and buffers."""
        own = self._own()
        for module, attributes, buffers in self._saved:
            for name, value in module.__dict__.items():
                if name not in _REGISTERED and value is not attributes.get(name) and _others(value, own):
                    yield self._path(module, name), value
            for name, value in _buffers(module).items():
                if (id(module), name) in self._borrowed and value is not buffers[name] and value is not None:
                    yield self._path(module, name), value

    def filled(self) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """Yield (path, tensors) of containers with new tensors."""
        own = self._own()
        for path, value, before in self._contents:
            if not value:  # most containers are dicts of hooks, and empty
                continue
            known = set(map(id, tree_leaves(before)))
            new = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and id(t) not in known]
            if _others(new, own):
                yield path, new

    def _own(self) -> set[int]:
        """The ids of the model's parameters and buffers."""
        registered = [(id(m), kind) for m, _, _ in self._saved for kind in (_parameters(m), _buffers(m))]
        return {id(t) for key, kind in registered for name, t in kind.items() if (key, name) not in self._borrowed}

    def _path(self, module: Module, name: str) -> str:
        prefix = self._names[id(module)]
        return f"{prefix}.{name}" if prefix else name

    def restore(self) -> None:
        """Restore everything."""
        for module, attributes, buffers in self._saved:
            now = module.__dict__
            for name in [name for name in now if name not in attributes or now[name] is not attributes[name]]:
                if name in attributes:
                    now[name] = attributes[name]
                else:
                    del now[name]
            for name in attributes.keys() - now.keys():
                now[name] = attributes[name]
            _fill(_buffers(module), buffers)
        for module, parameters in self._parameters:
            _fill(_parameters(module), parameters)
        for _, value, contents in self._contents:
            _fill(value, contents)

    def changed(self) -> Iterator[tuple[Module, str, Any]]:
        """Yield (module, attribute, value) of attributes set since."""
        for module, name, _, value in self._set():
            if _without_tensors(value):
                yield module, name, value

    def plain(self, names: Collection[tuple[int, str]]) -> Iterator[tuple[str, object, object]]:
        """Yield (path, value before, value) of the attributes with plain values. names: ids of modules, and names."""
        for module, attributes, _ in self._saved:
            for name, value in module.__dict__.items():
                if (id(module), name) in names and is_plain(value):
                    yield self._path(module, name), attributes.get(name, _NOTHING), value

    def _set(self) -> Iterator[tuple[Module, str, Any, Any]]:
        """Yield (module, attribute, value before, value) of attributes set since."""
        for module, attributes, _ in self._saved:
            for name, value in module.__dict__.items():
                if value is not (old := attributes.get(name, _NOTHING)):
                    yield module, name, old, value

    def changed_contents(self) -> Iterator[tuple[Any, Any]]:
        """Yield (container, copy) of containers that changed since."""
        for _, value, before in self._contents:
            if list(map(id, _items(value))) != list(map(id, _items(before))) and _without_tensors(value):
                yield value, value.copy()


def _items(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


class LeftBehind:
    """The changes of forward to attributes other than tensors, to try its next call."""

    def __init__(self, model: Module, before: Attributes) -> None:
        self._model = model
        self._set = list(before.changed())
        self._contents = list(before.changed_contents())

    @contextmanager
    def again(self) -> Generator[None]:
        """Put the model into the state after its first call, in the `with` block."""
        before = Attributes(self._model)
        for module, name, value in self._set:
            module.__dict__[name] = value
        for container, contents in self._contents:
            _fill(container, contents)
        try:
            yield
        finally:
            before.restore()


def _fill(container: Any, contents: Any) -> None:
    container.clear()
    container.extend(contents) if is_list(container) else container.update(contents)


def _others(value: object, own: set[int]) -> bool:
    """Whether the value holds tensors that are not in `own`."""
    return any(isinstance(leaf, torch.Tensor) and id(leaf) not in own for leaf in tree_leaves(value))


def _without_tensors(value: object) -> bool:
    return not _others(value, set())


def warn_of_lost_tensors(names: Collection[str]) -> None:
    _warn_of(
        names,
        "forward leaves tensors in {}, where a scheduled step does not put them: return them, or set an attribute to a "
        "tensor, or to a new list, tuple or dict of tensors",
    )


def warn_of_lost_values(names: Collection[str]) -> None:
    _warn_of(
        names,
        "forward sets {} to what a file cannot hold, so a scheduled step does not set it: code outside of forward "
        "reads the value from before planning. Return tensors or numbers, if anything but forward reads it",
    )


def _warn_of(names: Collection[str], message: str) -> None:
    """Warn of names, if there are any; {} in the message stands for them."""
    if names:
        listed = ", ".join(sorted(set(names))[:5])
        warnings.warn(message.format(listed), UserWarning, stacklevel=frames_to_caller())


def warn_of_checkpoints(places: list[str], own: int | None, baseline: int) -> None:
    """Warn that the plan replaces checkpoints.

    Args:
        places: Modules and lines that call torch.utils.checkpoint.
        own: Peak of the step with these checkpoints in bytes, without workspaces; None if unknown.
        baseline: Peak of the step without recomputation in bytes, without workspaces.
    """
    if not places:
        return
    share = "takes less than 100%"
    if own is not None:
        share = f"is at {100 * own / baseline:.0f}% ({size(own)} of {size(baseline)}, workspaces not counted)"
    warnings.warn(
        f"forward uses torch.utils.checkpoint ({', '.join(places[:5])}): the plan replaces these checkpoints. "
        "Shares of a budget refer to the peak without checkpoints and recomputation, where the model with its "
        f"checkpoints {share}",
        UserWarning,
        stacklevel=5,
    )


@contextmanager
def checkpoints_run_once(met: Callable[[FrameType], None]) -> Generator[None]:
    """Let torch.utils.checkpoint only call its function, because the plan decides what is recomputed.

    met: called with the frame that called into torch for each checkpoint."""
    module: Any = torch.utils.checkpoint
    # The last name is torch 2.15's.
    generators = "_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl"

    class Once:
        @staticmethod
        def apply(function: Any, preserve: Any, *args: Any) -> Any:
            met(frame_above(1))
            # As in torch, nothing within gets a gradient unless an argument requires one.
            required = any(isinstance(argument, torch.Tensor) and argument.requires_grad for argument in args)
            with torch.set_grad_enabled(torch.is_grad_enabled() and required):
                return function(*args)

    def generator(*args: object, **kwargs: object) -> Iterator[None]:
        met(frame_above(1))
        yield

    functions = {name: partial(generator) for name in generators if hasattr(module, name)}  # an object for each name
    with replaced_attributes(module, {"CheckpointFunction": Once, **functions}):
        yield


class Ties:
    """Tensors that are registered in several places. The tracer replaces only the first."""

    def __init__(self, model: Module) -> None:
        self._links: list[tuple[Module, str, Module, str]] = []  # a further place, and the first
        first: dict[int, tuple[Module, str]] = {}
        for module in model.modules():
            for registered in (_parameters(module), _buffers(module)):
                for name, tensor in registered.items():
                    if tensor is not None:
                        owner = first.setdefault(id(tensor), (module, name))
                        if owner != (module, name):
                            self._links.append((module, name, *owner))

    @contextmanager
    def followed(self) -> Generator[None]:
        """Let the further places hold the tensor of the first, in the `with` block."""
        saved: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for module, name, owner, its_name in self._links:
                registered: dict[str, Any] = _parameters(module) if name in _parameters(module) else _buffers(module)
                saved.append((registered, name, registered[name]))
                registered[name] = getattr(owner, its_name)
            yield
        finally:
            for registered, name, tensor in saved:
                registered[name] = tensor
