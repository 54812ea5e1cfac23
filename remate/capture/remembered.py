"""While tracing: caches the types of results of operators, because equal layers repeat them.

The cache is for operators that return new tensors, and whose result types follow from the types of tensors and plain
arguments. The cache of FakeTensorMode has keys that take longer to compute than many operators. This module uses
unstable interfaces.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from remate_runtime.format import is_array

from .dispatch import dispatched_by
from .kinds import kind_of

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FOLLOWS_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class _Layout(msgspec.Struct, frozen=True):
    """The layout of a cached result."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _UnknownError(Exception):
    """Raised for an argument that cannot be part of a key."""


@contextlib.contextmanager
def remembered(mode: FakeTensorMode) -> Generator[None]:
    """Cache the results of `mode`."""
    usual: Callable[..., Any] = mode.dispatch
    usable: dict[Any, bool] = {}
    results: dict[Any, tuple[_Layout | None, ...] | _Layout | None] = {}

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = usable.get(func)
        if known is None:
            known = usable[func] = _usable(func)
        key = _key(func, args, kwargs, mode) if known else None
        entry = results.get(key) if key is not None else None
        if entry is not None:
            return tuple(_new(each, mode) for each in entry) if isinstance(entry, tuple) else _new(entry, mode)
        result = usual(func, types, args, kwargs)
        if key is not None:
            results[key] = _outline(result, args, kwargs)
        return result

    with dispatched_by(mode, dispatch):
        yield


def _usable(func: object) -> bool:
    return (
        isinstance(func, OpOverload)
        and func.namespace == "aten"
        and not func._schema.is_mutable
        and not func.is_view
        and not any(tag in func.tags for tag in _FOLLOWS_DATA)
        and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)
    )


def _key(func: object, args: object, kwargs: Mapping[str, object] | None, mode: FakeTensorMode) -> Any:
    """Return everything that determines a result, or None if it is unknown. Tensors determine the device."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    try:
        tensors = _add(parts, args, mode)
        if kwargs:
            parts.append(tuple(kwargs))
            tensors = _add(parts, kwargs.values(), mode) or tensors
    except _UnknownError:
        return None
    return tuple(parts) if tensors else None


def _add(parts: list[Any], values: Any, mode: FakeTensorMode) -> bool:
    """Add `values` to a key. Returns whether there is a tensor among them."""
    tensors = False
    for value in values:
        kind = kind_of(value)
        if kind is FakeTensor:
            if value.fake_mode is not mode or value.constant is not None or value.layout is not torch.strided:
                raise _UnknownError
            parts += (value.shape, value.stride(), value.dtype, value.fake_device, value.is_conj(), value.is_neg())
            tensors = True
        elif kind in _PLAIN:
            parts += (kind, value)
        elif kind is list or kind is tuple:
            parts += (kind, len(value))
            tensors = _add(parts, value, mode) or tensors
        else:
            raise _UnknownError
    return tensors


def _outline(result: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[_Layout | None, ...] | _Layout | None:
    """Return the layouts of a result, or None if it is not made of new tensors only."""
    taken = {leaf.untyped_storage()._cdata for leaf in _tensors((args, *(kwargs or {}).values()))}

    def layout(tensor: Any) -> _Layout | None:
        plain = type(tensor) is FakeTensor and tensor.layout is torch.strided and tensor.constant is None
        flags = plain and (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.storage_offset())
        if not plain or flags or tensor.untyped_storage()._cdata in taken:
            raise _UnknownError
        taken.add(tensor.untyped_storage()._cdata)
        return _Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device)

    try:
        if kind_of(result) is tuple:
            return tuple(None if each is None else layout(each) for each in result)
        return layout(result)
    except _UnknownError:
        return None


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif is_array(value):
        for each in value:
            yield from _tensors(each)


def _new(layout: _Layout | None, mode: FakeTensorMode) -> FakeTensor | None:
    if layout is None:
        return None
    with in_kernel_invocation_manager(mode):
        empty = torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device="meta")
    return FakeTensor(mode, empty, layout.device)
