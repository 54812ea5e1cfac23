"""Compact tensor types: `f32[8,256,768]`, `bf16[4,4]{1,4}` (strides), `i64[]@cpu` (not on the schedule's device)."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

import msgspec
from msgspec.structs import replace

from ..errors import ScheduleError
from .memory_layouts import packed_strides

# name in the file (`vocabulary.Dtype`) -> (name of the torch dtype, bytes per element)
DTYPES: dict[str, tuple[str, int]] = {
    "f64": ("float64", 8),
    "f32": ("float32", 4),
    "f16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "f8e4m3": ("float8_e4m3fn", 1),
    "f8e5m2": ("float8_e5m2", 1),
    "i64": ("int64", 8),
    "i32": ("int32", 4),
    "i16": ("int16", 2),
    "i8": ("int8", 1),
    "u8": ("uint8", 1),
    "u16": ("uint16", 2),
    "u32": ("uint32", 4),
    "u64": ("uint64", 8),
    "bool": ("bool", 1),
    "c64": ("complex64", 8),
    "c128": ("complex128", 16),
}
MAX_RANK = 64
MAX_BYTES = 1 << 60  # limit of a tensor, so that every sum in a file fits into 64 bits
_TYPE = re.compile(
    r"([a-z0-9]+)\[((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\](?:\{((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\})?(@cpu)?"
)


class TensorType(msgspec.Struct, frozen=True, gc=False):
    """dtype, shape, strides (None: contiguous), and whether the tensor stays on the CPU on every device."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    cpu: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a storage for exactly this tensor."""
        size = DTYPES[self.dtype][1]
        if self.strides is None or 0 in self.shape:
            return self.numel * size
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))) * size

    @property
    def dense(self) -> TensorType:
        """Return this type if it fills its storage, else the type of a copy in PyTorch.

        The copy has no gaps or overlaps, and strides in the same order. It is the type of the gradient of such a value.
        """
        if self.strides is None or len(self.shape) < 2:
            return self if self.nbytes == self.numel * DTYPES[self.dtype][1] else replace(self, strides=None)
        order = _stride_order(self.shape, self.strides)
        strides = packed_strides(self.shape, order[::-1])
        if all(n < 2 or have == packed for n, have, packed in zip(self.shape, self.strides, strides, strict=True)):
            return self
        return replace(self, strides=None if order == [*range(len(order))][::-1] else strides)

    def ordered(self, axes: tuple[int, ...]) -> TensorType:
        """Return the type without gaps or overlaps whose strides descend in this order of the axes."""
        strides = packed_strides(self.shape, axes)
        return replace(self, strides=None if contiguous(self.shape, strides) else strides)

    def __str__(self) -> str:
        strides = "" if self.strides is None else "{" + ",".join(map(str, self.strides)) + "}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{strides}{'@cpu' if self.cpu else ''}"


@lru_cache(maxsize=65536)
def parse_type(text: str) -> TensorType:
    """Parse a type. Raises ScheduleError R020 if `text` is not a tensor type."""
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in DTYPES:
        raise ScheduleError("R020", f"{text[:80]!r} is not a tensor type", hint="write it as f32[8,256] or bf16[4]{1}")
    shape = _numbers(match[2])
    strides = None if match[3] is None else _numbers(match[3])
    if len(shape) > MAX_RANK or (strides is not None and len(strides) != len(shape)):
        raise ScheduleError("R020", f"{text[:80]!r}: rank over {MAX_RANK}, or strides that do not fit the shape")
    type_ = TensorType(match[1], shape, strides, match[4] is not None)
    if type_.nbytes > MAX_BYTES or type_.numel > MAX_BYTES:
        raise ScheduleError("R020", f"{text[:80]!r} is larger than any tensor can be")
    return type_


def contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Return whether torch calls a tensor of these strides contiguous: strides of sizes of 1 do not count."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _stride_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Return dimensions from the smallest stride to the largest; those with stride 0 stay in place."""

    def later(left: int, right: int) -> int:
        if strides[left] == 0 or strides[right] == 0:
            return 0
        if strides[left] != strides[right]:
            return 1 if strides[left] > strides[right] else -1
        return 1 if shape[left] > shape[right] else 0

    order = [*range(len(shape))][::-1]
    for start in range(1, len(order)):
        at = start
        for below in range(start - 1, -1, -1):
            compared = later(order[below], order[at])
            if compared > 0:
                order[below], order[at] = order[at], order[below]
                at = below
            elif compared < 0:
                break
    return order


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
