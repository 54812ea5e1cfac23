"""Tensors at addresses that all replays share: filled before a replay, copied after it.

Their memory belongs to the private pool, which reuses it when a step is over, so nothing here owns any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Address = Callable[[torch.UntypedStorage], int]
Bytes = Callable[[int, int], torch.Tensor]  # (address, count): that memory as a tensor of uint8, which does not own it
_ALIGNED = 16  # bytes of the largest elements


class Static(NamedTuple):
    """The location of a tensor. span: bytes from its first to its last element, inclusive."""

    address: int
    span: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    storage: int

    @property
    def dense(self) -> bool:
        """Return whether its elements fill the span, each once."""
        return self.span == torch.Size(self.size).numel() * self.dtype.itemsize

    def on(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        """Return a tensor of this kind in a tensor of bytes."""
        tensor = torch.empty(0, dtype=self.dtype, device=memory.device)
        return tensor.set_(memory.untyped_storage(), offset // self.dtype.itemsize, self.size, self.stride)


def static(tensor: torch.Tensor, address: Address = torch.UntypedStorage.data_ptr) -> Static:
    """Return the current location of a tensor. address: returns that of a storage."""
    size, stride, itemsize = tuple(tensor.size()), tensor.stride(), tensor.dtype.itemsize
    last = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    span = (last + 1) * itemsize if tensor.numel() else 0
    begin = address(tensor.untyped_storage())
    first = begin + int(tensor.storage_offset()) * itemsize if span else 0
    return Static(first, span, tensor.dtype, size, stride, begin)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Allocate memory for a tensor of the same type and layout."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def alias(where: Static, bytes_at: Bytes, device: torch.device) -> torch.Tensor:
    if not where.span:
        return torch.empty_strided(where.size, where.stride, dtype=where.dtype, device=device)
    return where.on(bytes_at(where.address, where.span), 0)


class Filled:
    """Static tensors that receive new contents before a replay."""

    def __init__(self, where: Sequence[Static], bytes_at: Bytes, device: torch.device) -> None:
        self._to = [(alias(target, bytes_at, device), target) for target in where]

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy tensors that have the layout of the static ones."""
        for (alias_of_target, target), tensor in zip(self._to, tensors, strict=True):
            if target.dense:
                alias_of_target.copy_(tensor)
            elif target.span:  # elements overlap, or have gaps
                _bytes(alias_of_target, target).copy_(_bytes(tensor, target))


def _bytes(tensor: torch.Tensor, target: Static) -> torch.Tensor:
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(tensor.untyped_storage(), tensor.storage_offset() * target.dtype.itemsize, (target.span,), (1,))


class Copied:
    """Copies static tensors after a replay. Those that share a storage share one in the copy."""

    def __init__(self, where: Sequence[Static], bytes_at: Bytes, device: torch.device) -> None:
        storages: dict[int, list[int]] = {}
        for number, tensor in enumerate(where):
            storages.setdefault(tensor.storage if tensor.span else -1 - number, []).append(number)
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
        copies: dict[int, torch.Tensor] = {}
        for memory, members in self._groups:
            copy = memory.clone()
            for number, tensor, offset in members:
                copies[number] = tensor.on(copy, offset)
        return [copies[number] for number in range(self._count)]
