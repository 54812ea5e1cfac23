"""Compact tensor types: `f32[8,256,768]`, `bf16[4,4]{1,4}` (strides), `i64[]@cpu` (not on the schedule's device)."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

import msgspec
from msgspec.structs import replace

from ..errors import ScheduleError

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
MAX_BYTES = 1 << 60  # no tensor is larger: keeps every sum in a file within 64 bits
_TYPE = re.compile(
    r"([a-z0-9]+)\[((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\](?:\{((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\})?(@cpu)?"
)


class TensorType(msgspec.Struct, frozen=True):
    """dtype, shape, strides (None: contiguous), and whether the tensor stays on the CPU whatever the device."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    cpu: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a storage that holds exactly this tensor."""
        size = DTYPES[self.dtype][1]
        if self.strides is None or 0 in self.shape:
            return self.numel * size
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))) * size

    @property
    def dense(self) -> TensorType:
        """This type where it fills its storage; else, as PyTorch lays out a copy of it: without gaps or overlaps, with
        the strides in the same order. It is the type of the gradient of a value of this type."""
        if self.strides is None or len(self.shape) < 2:
            return self if self.nbytes == self.numel * DTYPES[self.dtype][1] else replace(self, strides=None)
        order = _stride_order(self.shape, self.strides)
        strides, size = [0] * len(order), 1
        for at in order:
            strides[at] = size
            size *= max(1, self.shape[at])
        if all(n < 2 or have == made for n, have, made in zip(self.shape, self.strides, strides, strict=True)):
            return self
        return replace(self, strides=None if order == [*range(len(order))][::-1] else tuple(strides))

    def __str__(self) -> str:
        strides = "" if self.strides is None else "{" + ",".join(map(str, self.strides)) + "}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{strides}{'@cpu' if self.cpu else ''}"


@lru_cache(maxsize=65536)
def parse_type(text: str) -> TensorType:
    """Raise ScheduleError R020 if `text` is not a tensor type."""
    found = _TYPE.fullmatch(text)
    if found is None or found[1] not in DTYPES:
        raise ScheduleError("R020", f"{text[:80]!r} is not a tensor type", hint="write it as f32[8,256] or bf16[4]{1}")
    shape = _numbers(found[2])
    strides = None if found[3] is None else _numbers(found[3])
    if len(shape) > MAX_RANK or (strides is not None and len(strides) != len(shape)):
        raise ScheduleError("R020", f"{text[:80]!r}: rank over {MAX_RANK}, or strides that do not fit the shape")
    made = TensorType(found[1], shape, strides, found[4] is not None)
    if made.nbytes > MAX_BYTES or made.numel > MAX_BYTES:
        raise ScheduleError("R020", f"{text[:80]!r} is larger than any tensor can be")
    return made


def contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether torch calls a tensor of these strides contiguous: the strides of sizes of 1 do not count."""
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
    """Dimensions from the smallest stride to the largest; those with stride 0 stay where they are."""

    def later(one: int, two: int) -> int:
        if strides[one] == 0 or strides[two] == 0:
            return 0
        if strides[one] != strides[two]:
            return 1 if strides[one] > strides[two] else -1
        return 1 if shape[one] > shape[two] else 0

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
