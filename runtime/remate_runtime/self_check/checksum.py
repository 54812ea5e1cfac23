"""Checksums of tensors in eight bytes. Equal tensors have equal checksums; others collide with probability 2**-60."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..bind.distributed import local_tensor
from ..operator_calls.overloads import described
from ..torch_private.execution import DisableTorchFunctionSubclass

_CHUNK = 1 << 13  # elements that are processed together, so that temporaries stay below 256 KiB
_STEP = -0x61C8864680B583EB  # odd; its powers distinguish the chunks
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WRAP = 1 << 64


class Checksum(NamedTuple):
    """The type, shape and content of a tensor. All NaN count as the same number, and so do 0.0 and -0.0."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    bits: int


class Checksums:
    """Computes checksums, and keeps the weights of a chunk for each device."""

    def __init__(self) -> None:
        self._weights: dict[torch.device, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> Checksum:
        """Return the checksum of a tensor of any layout."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            plain = local_tensor(tensor).detach()
            if plain.layout is not torch.strided:
                plain = plain.to_dense()
            plain = plain.resolve_conj().resolve_neg()
            if plain.is_complex():
                plain = torch.view_as_real(plain)
            total = at = 0
            for piece in _pieces(plain):
                words = _canonical(piece).view(_WORDS[piece.element_size()]).to(torch.int64)
                for part in words.tensor_split((-at % _CHUNK,)):
                    total = (total + pow(_STEP, at // _CHUNK, _WRAP) * self._weighed(part, at % _CHUNK)) % _WRAP
                    at += part.numel()
        return Checksum(tensor.dtype, tuple(tensor.shape), total)

    def content(self, tensor: torch.Tensor) -> Checksum | None:
        """Return the checksum of a plain tensor; None for subclasses, whose data may be elsewhere."""
        ordinary = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        return self.of(tensor) if ordinary and tensor.device.type != "meta" else None

    def _weighed(self, words: torch.Tensor, at: int) -> int:
        """Return the sum of elements of a chunk from position `at` on, weighted by position, modulo 2**64."""
        weights = self._weights.get(words.device)
        if weights is None:
            source = torch.Generator().manual_seed(0x5EED)
            random = torch.randint(-(1 << 62), 1 << 62, (_CHUNK,), dtype=torch.int64, generator=source, device="cpu")
            weights = self._weights[words.device] = random.mul_(2).add_(1).to(words.device)
        return int((words * weights[at : at + words.numel()]).sum())


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the elements in order, at most a chunk at a time."""
    if tensor.is_contiguous() or tensor.numel() <= _CHUNK:
        yield from torch.split(tensor.reshape(-1), _CHUNK)
    else:
        rows = max(1, _CHUNK * tensor.shape[0] // tensor.numel())
        for block in torch.split(tensor, rows):
            yield from _pieces(block if block.shape[0] > 1 or block.dim() == 1 else block[0])


def _canonical(piece: torch.Tensor) -> torch.Tensor:
    if not piece.is_floating_point() or piece.element_size() == 1:
        return piece
    return (piece + 0.0).masked_fill_(piece.isnan(), math.nan)


def summary(tensor: torch.Tensor) -> str:
    """Describe a tensor in a few words for messages."""
    try:
        if not tensor.numel():
            return described(tensor)
        values = (tensor.detach().abs() if tensor.is_complex() else tensor.detach()).double()
        return f"{described(tensor)} (sum {float(values.sum()):.6g}, largest {float(values.abs().max()):.6g})"
    except (RuntimeError, NotImplementedError, TypeError):
        return type(tensor).__name__
