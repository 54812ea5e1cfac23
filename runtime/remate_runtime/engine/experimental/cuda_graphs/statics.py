"""Tensors at addresses that all replays share: filled before a replay, copied behind one. The memory belongs to the
private pool, which has long used it for something else when a step is over, so nothing here owns any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Bytes = Callable[[int, int], torch.Tensor]  # (address, count): that memory as a tensor of uint8, which does not own it
_ALIGNED = 16  # bytes, of the largest elements


class Static(NamedTuple):
    """Where a tensor lies. address, span: of the bytes from its first element to behind its last one."""

    address: int
    span: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    storage: int

    @property
    def dense(self) -> bool:
        """Whether the span is filled by its elements, each once."""
        return self.span == torch.Size(self.size).numel() * self.dtype.itemsize

    def on(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        """A tensor of this kind in a tensor of bytes."""
        made = torch.empty(0, dtype=self.dtype, device=memory.device)
        return made.set_(memory.untyped_storage(), offset // self.dtype.itemsize, self.size, self.stride)


def static(tensor: torch.Tensor) -> Static:
    """Where a tensor lies now."""
    size, stride, itemsize = tuple(tensor.size()), tensor.stride(), tensor.dtype.itemsize
    last = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    span = (last + 1) * itemsize if tensor.numel() else 0
    return Static(tensor.data_ptr(), span, tensor.dtype, size, stride, tensor.untyped_storage().data_ptr())


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor of the same type, laid out in the same way."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def alias(where: Static, bytes_at: Bytes, device: torch.device) -> torch.Tensor:
    if not where.span:
        return torch.empty_strided(where.size, where.stride, dtype=where.dtype, device=device)
    return where.on(bytes_at(where.address, where.span), 0)


class Filled:
    """Static tensors that are given new contents before a replay."""

    def __init__(self, where: Sequence[Static], bytes_at: Bytes, device: torch.device) -> None:
        self._to = [(alias(one, bytes_at, device), one) for one in where]

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Each lies as the static one does, at another address."""
        for (to, one), tensor in zip(self._to, tensors, strict=True):
            if one.dense:
                to.copy_(tensor)
            elif one.span:  # elements that lie over each other, or apart
                _bytes(to, one).copy_(_bytes(tensor, one))


def _bytes(tensor: torch.Tensor, one: Static) -> torch.Tensor:
    made = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset() * one.dtype.itemsize, (one.span,), (1,))


class Copied:
    """Copies of static tensors, to be made behind a replay. Those that share a storage do so in the copy."""

    def __init__(self, where: Sequence[Static], bytes_at: Bytes, device: torch.device) -> None:
        storages: dict[int, list[int]] = {}
        for number, one in enumerate(where):
            storages.setdefault(one.storage if one.span else -1 - number, []).append(number)
        self._count = len(where)
        self._groups: list[tuple[torch.Tensor, list[tuple[int, Static, int]]]] = []
        for numbers in storages.values():
            start = min(where[n].address for n in numbers) // _ALIGNED * _ALIGNED
            end = max(where[n].address + where[n].span for n in numbers)
            memory = bytes_at(start, end - start) if end > start else torch.empty(0, dtype=torch.uint8, device=device)
            self._groups.append((memory, [(n, where[n], where[n].address - start) for n in numbers]))

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory, _ in self._groups)

    def __call__(self) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for memory, members in self._groups:
            copy = memory.clone()
            for number, one, offset in members:
                found[number] = one.on(copy, offset)
        return [found[number] for number in range(self._count)]
