"""Tensor types with named dimensions: `f32[b,t,768]{768*t,768,1}`. Does not require torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

import msgspec

from ..errors import ScheduleError
from .expression_text import parse_size
from .expressions import Size, dimension, spelled
from .tensor_type import DTYPES, MAX_BYTES, MAX_RANK, TensorType, contiguous

_TYPE = re.compile(r"([a-z0-9]+)\[([^\[\]{}@]*)\](?:\{([^\[\]{}@]*)\})?(@cpu)?")


class SizedType(msgspec.Struct, frozen=True):
    """A tensor type whose sizes are expressions. strides: None means contiguous at every size. cpu: the tensor stays on
    the CPU."""

    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None = None
    cpu: bool = False

    @property
    def dims(self) -> frozenset[str]:
        return frozenset[str]().union(*(size.dims for size in (*self.shape, *(self.strides or ()))))

    def at(self, dims: Mapping[str, int]) -> TensorType:
        """Return the type at a size, without strides if they are contiguous. Raises ScheduleError R025."""
        shape = tuple(size.at(dims) for size in self.shape)
        strides = None if self.strides is None else tuple(size.at(dims) for size in self.strides)
        type_ = TensorType(self.dtype, shape, None if contiguous(shape, strides) else strides, self.cpu)
        if any(number < 0 for number in (*shape, *(strides or ()))):
            raise ScheduleError("R025", f"{self} has a negative size at {spelled(dims)}: {type_}")
        if type_.nbytes > MAX_BYTES or type_.numel > MAX_BYTES:
            raise ScheduleError("R025", f"{self} is larger than any tensor can be at {spelled(dims)}")
        return type_

    def __str__(self) -> str:
        strides = "" if self.strides is None else "{" + ",".join(map(str, self.strides)) + "}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{strides}{'@cpu' if self.cpu else ''}"


def open_axes(text: str, dims: Collection[str]) -> dict[int, str]:
    """Return the axes of a tensor type whose size is one of `dims`. Raises what `parse_sized` raises."""
    sizes = {dimension(name): name for name in dims}
    return {axis: sizes[size] for axis, size in enumerate(parse_sized(text).shape) if size in sizes}


@lru_cache(maxsize=8192)
def parse_sized(text: str) -> SizedType:
    """Parse a type. Raises ScheduleError R020 if `text` is no tensor type, R024 if a size is no expression of sizes."""
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in DTYPES:
        raise ScheduleError(
            "R020", f"{text[:80]!r} is not a tensor type", hint="write it as f32[b,256] or bf16[b,4]{1,b}"
        )
    shape = _sizes(match[2])
    strides = None if match[3] is None else _sizes(match[3])
    if len(shape) > MAX_RANK or (strides is not None and len(strides) != len(shape)):
        raise ScheduleError("R020", f"{text[:80]!r}: rank over {MAX_RANK}, or strides that do not fit the shape")
    return SizedType(match[1], shape, strides, match[4] is not None)


def _sizes(text: str) -> tuple[Size, ...]:
    return tuple(map(parse_size, text.split(","))) if text else ()
