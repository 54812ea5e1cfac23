"""What a model keeps outside its parameters and buffers, lent to the tracer and put back afterwards."""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn import Module
from torch.utils import _pytree as pytree

_NOTHING: Any = object()
_REGISTERED = ("_parameters", "_buffers")  # lent to the tracer, which puts them back itself


@contextmanager
def attributes_as_buffers(model: Module) -> Iterator[frozenset[tuple[int, str]]]:
    """Plain tensor attributes stand among the buffers while this lasts: `self.scale = torch.ones(4)`. Gives which they
    are: id of the module, name."""
    moved: list[tuple[Module, str, torch.Tensor]] = []
    shadows: list[tuple[type, str, Any]] = []
    try:
        for module in model.modules():
            for name, value in list(module.__dict__.items()):
                if isinstance(value, torch.Tensor) and value.is_leaf and not value.requires_grad:
                    moved.append((module, name, value))
                    del module.__dict__[name]
                    module._buffers[name] = value
        borrowed = frozenset((id(module), name) for module, name, _ in moved)
        for module, name, _ in moved:
            shadows += _taken_defaults(model, type(module), name, borrowed)
        yield frozenset((id(module), name) for module, name, _ in moved)
    finally:
        for kind, name, default in shadows:
            setattr(kind, name, default)
        for module, name, value in moved:
            module._buffers.pop(name, None)
            module.__dict__[name] = value


def _taken_defaults(
    model: Module, kind: type, name: str, borrowed: frozenset[tuple[int, str]]
) -> list[tuple[type, str, Any]]:
    """Defaults in classes (`mask = None`), taken away: they would be found before buffers. Only where all modules of
    the class have a tensor of their own."""
    taken: list[tuple[type, str, Any]] = []
    for base in kind.__mro__:
        if name in vars(base) and all((id(m), name) in borrowed for m in model.modules() if isinstance(m, base)):
            taken.append((base, name, vars(base)[name]))
            delattr(base, name)
    return taken


class Attributes:
    """Attributes (hooks too) of all modules at one moment, to be put back: what `forward` sets must not outlive a
    trace."""

    def __init__(self, model: Module, borrowed: frozenset[tuple[int, str]] = frozenset()) -> None:
        """lent: attributes that stand among the buffers."""
        self._borrowed = borrowed
        self._names = {id(module): name for name, module in model.named_modules()}
        self._saved = [(module, dict(module.__dict__), dict(module._buffers)) for module in model.modules()]
        self._contents = [
            (self._path(module, name), value, value.copy())
            for module, attributes, _ in self._saved
            for name, value in attributes.items()
            if type(value) in (list, set, dict, OrderedDict) and name not in _REGISTERED
        ]

    def reassigned_buffers(self) -> Iterator[tuple[str, torch.Tensor, Any]]:
        """(name, old tensor, what forward assigned) of buffers that were bound to another tensor."""
        for module, _, buffers in self._saved:
            for name, old in buffers.items():
                new = module._buffers.get(name)
                if old is not None and new is not old and (id(module), name) not in self._borrowed:
                    yield self._path(module, name), old, new

    def stored(self) -> Iterator[tuple[str, Any]]:
        """(path, value) of attributes that forward set to tensors, or to containers of tensors: other than the model's
        own parameters and buffers, which recurrent layers list, too."""
        own = self._own()
        for module, attributes, buffers in self._saved:
            for name, value in module.__dict__.items():
                if name not in _REGISTERED and value is not attributes.get(name) and _others(value, own):
                    yield self._path(module, name), value
            for name, value in module._buffers.items():
                if (id(module), name) in self._borrowed and value is not buffers[name] and value is not None:
                    yield self._path(module, name), value

    def filled(self) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """(path, tensors) of containers that hold tensors now which they did not hold before."""
        own = self._own()
        for path, value, before in self._contents:
            if not value:  # as nearly all of them are: hooks that nobody has put there
                continue
            known = set(map(id, pytree.tree_leaves(before)))
            new = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor) and id(t) not in known]
            if _others(new, own):
                yield path, new

    def _own(self) -> set[int]:
        """Which tensors are the model's parameters and buffers now."""
        registered = [
            (m, name, t) for m, _, _ in self._saved for kind in (m._parameters, m._buffers) for name, t in kind.items()
        ]
        return {id(tensor) for module, name, tensor in registered if (id(module), name) not in self._borrowed}

    def _path(self, module: Module, name: str) -> str:
        prefix = self._names[id(module)]
        return f"{prefix}.{name}" if prefix else name

    def restore(self) -> None:
        """Put everything back."""
        for module, attributes, buffers in self._saved:
            now = module.__dict__
            for name in [name for name in now if name not in attributes or now[name] is not attributes[name]]:
                if name in attributes:
                    now[name] = attributes[name]
                else:
                    del now[name]
            for name in attributes.keys() - now.keys():
                now[name] = attributes[name]
            module._buffers.clear()
            module._buffers.update(buffers)
        for _, value, contents in self._contents:
            _fill(value, contents)

    def changed(self) -> Iterator[tuple[Module, str, Any]]:
        """(module, attribute, value) of what was set since."""
        for module, attributes, _ in self._saved:
            for name, value in module.__dict__.items():
                if value is not attributes.get(name, _NOTHING) and _without_tensors(value):
                    yield module, name, value

    def changed_contents(self) -> Iterator[tuple[Any, Any]]:
        """(container, a copy) of the attributes' containers that hold something else since."""
        for _, value, before in self._contents:
            if list(map(id, _items(value))) != list(map(id, _items(before))) and _without_tensors(value):
                yield value, value.copy()


def _items(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


class LeftBehind:
    """What forward changed of all modules' attributes, tensors apart, so that it can be tried what its next call
    does."""

    def __init__(self, model: Module, before: Attributes) -> None:
        self._model = model
        self._set = list(before.changed())
        self._contents = list(before.changed_contents())

    @contextmanager
    def again(self) -> Iterator[None]:
        """Meanwhile the model is as its first call left it."""
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
    container.extend(contents) if isinstance(container, list) else container.update(contents)


def _others(value: Any, own: set[int]) -> bool:
    """Whether it holds tensors that are not among `own`."""
    return any(isinstance(leaf, torch.Tensor) and id(leaf) not in own for leaf in pytree.tree_leaves(value))


def _without_tensors(value: Any) -> bool:
    return not _others(value, set())


def warn_of_lost_tensors(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"forward leaves tensors in {', '.join(sorted(set(names))[:5])}, where a scheduled step does not put them: "
            "return them, or set an attribute to a tensor, or to a new list, tuple or dict of tensors",
            UserWarning,
            stacklevel=5,
        )


def warn_of_checkpoints(places: list[str]) -> None:
    if places:
        warnings.warn(
            f"forward uses torch.utils.checkpoint ({', '.join(places[:5])}): the plan decides what runs again in its "
            "place. The peak without recomputation that shares of a budget refer to is that of the model without "
            "checkpoints, so the model as it is takes less than 100% today",
            UserWarning,
            stacklevel=5,
        )


@contextmanager
def checkpoints_run_once(met: Callable[[FrameType], None]) -> Iterator[None]:
    """torch.utils.checkpoint calls its function and nothing else: what is recomputed is the plan's decision.

    met: called with the frame that called into torch for each checkpoint."""
    module: Any = torch.utils.checkpoint
    # The last name is torch 2.15's.
    generators = "_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl"
    saved = {name: getattr(module, name) for name in ("CheckpointFunction", *generators) if hasattr(module, name)}

    class Once:
        @staticmethod
        def apply(function: Any, preserve: Any, *args: Any) -> Any:
            met(sys._getframe(1))
            return function(*args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        met(sys._getframe(1))
        yield

    for name in saved:
        setattr(module, name, Once if name == "CheckpointFunction" else generator)
    try:
        yield
    finally:
        for name, usual in saved.items():
            setattr(module, name, usual)


class Ties:
    """Tensors that are registered in several places. The tracer is shown the first place only."""

    def __init__(self, model: Module) -> None:
        self._links: list[tuple[Module, str, Module, str]] = []  # a further place, and the first
        first: dict[int, tuple[Module, str]] = {}
        for module in model.modules():
            for registered in (module._parameters, module._buffers):
                for name, tensor in registered.items():
                    if tensor is not None:
                        owner = first.setdefault(id(tensor), (module, name))
                        if owner != (module, name):
                            self._links.append((module, name, *owner))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """The further places hold what the first one holds now."""
        saved: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for module, name, owner, its_name in self._links:
                registered: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
                saved.append((registered, name, registered[name]))
                registered[name] = getattr(owner, its_name)
            yield
        finally:
            for registered, name, tensor in saved:
                registered[name] = tensor
