"""Replaces the forward of a live model, without replacing the model object.

The object's class becomes a subclass, as in `remate.record`. Its attributes do not change. So existing optimizers,
wrappers, hooks and references keep working, and `isinstance` and names give the same results.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any, Protocol

from torch import nn

from remate_runtime.applied import original_of, outside_compiler

from ..errors import CaptureError

_AGAIN = "remate_calls"
_MOST = 64  # most objects of a wrapper to look into


class Calls(Protocol):
    """Runs the calls of a model."""

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any: ...

    def copied_to(self, model: nn.Module) -> None:
        """Take over a deep copy of the model in the same way."""
        ...


def plain_view(model: nn.Module) -> Any:
    """Return the model with its own forward: an instance of its class that shares the model's attributes."""
    view = object.__new__(type(model))
    object.__setattr__(view, "__dict__", vars(model))
    return view


def is_taken_over(model: object) -> bool:
    """Return whether the calls of this model are already taken over."""
    return calls_of(model) is not None


def calls_of(model: object) -> Any:
    """Return the `Calls` of a model; None for other models, including instances that its class created."""
    plain = getattr(type(model), "_remate_plain", None)
    return None if plain is None or vars(plain) is not vars(model) else getattr(type(model), _AGAIN)


def check_free(model: nn.Module) -> None:
    """Raise CaptureError for a model whose forward cannot be taken over."""
    if is_taken_over(model):
        raise CaptureError(
            "remate.auto was already called for this model", hint="call it once, where the model is created"
        )
    if original_of(model) is not model:
        raise CaptureError(
            "the model already has a schedule",
            hint="pass the model that the schedule was applied to, or do not call remate.auto",
        )
    if "forward" in vars(model) and cell_of_forward(model) is None:
        replaced = vars(model)["forward"]
        raise CaptureError(
            f"the forward of the model was replaced by {getattr(replaced, '__qualname__', 'something else')!r}",
            hint="call remate.auto before a library wraps the model: before accelerator.prepare(model) or "
            "trainer.train()",
        )


def take_over(model: nn.Module, plain: object, calls: Calls) -> None:
    """Let `calls` run the calls of `model`. The model's hooks still run.

    Args:
        model: The model.
        plain: Its `plain_view`, created before.
        calls: Runs the calls.

    Raises:
        CaptureError: The model is not a Python module (TorchScript), or as in `check_free`.
    """
    check_free(model)
    kind, cell = type(model), cell_of_forward(model)
    forward = _Forward(kind, plain, calls)
    space = {
        "forward": forward,
        "_remate_plain": plain,
        _AGAIN: calls,
        "__reduce_ex__": functools.partialmethod(_reduce, kind),
        "__deepcopy__": functools.partialmethod(_deepcopy, kind),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    subclass: Any = type(kind.__name__, (kind,), space)
    subclass.forward = forward  # set again, because `__init_subclass__` of a class may wrap the first one
    try:
        model.__class__ = subclass
    except TypeError:
        raise CaptureError(f"the calls of a {kind.__name__} cannot be planned", hint="give a Python module") from None
    if cell is not None:
        forward.put_within(vars(model).pop("forward"), cell)


def cell_of_forward(model: nn.Module) -> CellType | None:
    """Return where a library's wrapper of the forward keeps the forward of the model's class, which it calls; None if
    there is no wrapper, or not exactly one such place. accelerate wraps a forward in autocast."""
    around, wanted = vars(model).get("forward"), getattr(type(model), "forward", None)
    cells: list[CellType] = []
    seen: set[int] = set()
    waiting: list[Any] = [] if around is None else [around]
    while waiting and len(seen) < _MOST:
        item = waiting.pop()
        item = getattr(item, "__func__", item)
        if id(item) in seen or not callable(item) or isinstance(item, type | nn.Module):
            continue
        seen.add(id(item))
        for cell in getattr(item, "__closure__", None) or ():
            inner = _content(cell)
            if inner is wanted:
                cells.append(cell)
            else:
                waiting.append(inner)
        if not isinstance(item, FunctionType):
            waiting += getattr(item, "__dict__", {}).values()
    return cells[0] if len(cells) == 1 else None


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


class _Forward:
    """`forward` of the model. As a data descriptor, it also sees a forward that a library sets."""

    def __init__(self, kind: Any, plain: Any, calls: Calls) -> None:
        self._kind, self._plain, self._around = kind, plain, None

        @functools.wraps(kind.forward)
        def forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if vars(model) is not vars(plain):  # a library moved the model's forward to a copy
                return kind.forward(model, *args, **kwargs)
            return calls(args, kwargs)

        self._forward: Callable[..., Any] = outside_compiler(forward)

    def put_within(self, around: Any, cell: CellType) -> None:
        """Let a library's wrapper call this forward instead of that of the class.

        Args:
            around: The wrapper.
            cell: As returned by `cell_of_forward`.
        """
        cell.cell_contents = self._forward
        self._around = around

    def __get__(self, module: object, owner: type) -> Any:
        if module is None:
            return self._kind.forward
        if vars(module) is not vars(self._plain):  # another instance of this class: a replica, `type(model)(config)`
            own = vars(module).get("forward")
            return self._kind.forward.__get__(module, owner) if own is None else own
        return MethodType(self._forward, module) if self._around is None else self._around

    def __set__(self, module: object, value: Any) -> None:
        if vars(module) is not vars(self._plain):
            vars(module)["forward"] = value
            return
        own = getattr(value, "__func__", value)  # a library that removes its wrapper restores the forward it saw before
        self._around = None if own in (self._forward, self._kind.forward) else value

    def __delete__(self, module: object) -> None:
        if vars(module) is not vars(self._plain):
            del vars(module)["forward"]
        self._around = None


def _reduce(model: Any, kind: type, protocol: Any) -> Any:
    """Reduce the model to its own class, which loads without remate."""
    reduced: str | tuple[Any, ...] = _as(model, kind, lambda: model.__reduce_ex__(protocol))
    # In this form, pickle requires that the class equals the object's class.
    newly = isinstance(reduced, tuple) and getattr(reduced[0], "__name__", "") == "__newobj__"
    return (object.__new__, *reduced[1:]) if newly else reduced


def _deepcopy(model: object, kind: type, memo: dict[int, Any]) -> Any:
    copied = _as(model, kind, lambda: copy.deepcopy(model, memo))
    calls = calls_of(model)
    if calls is not None:
        calls.copied_to(copied)
    return copied


def _as(model: object, kind: type, act: Callable[[], object]) -> Any:
    """Return the result of `act` while the model has its own class."""
    taken = type(model)
    model.__class__ = kind
    try:
        return act()
    finally:
        model.__class__ = taken
