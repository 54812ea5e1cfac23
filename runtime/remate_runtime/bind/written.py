"""Buffers that a step updates: nothing else that it reads may lie in their memory.

Eager writes into them in the midst of forward, and what shares their memory is another number from there on. A schedule
has one value of each tensor, and writes new ones when forward ends, so that it would compute with what was there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from ..errors import BindError
from .model_binding import ModelBinding, TensorBinding

_WHY = "which the step updates: eager reads what it has written by then, a schedule what was there before"


class WrittenBuffers:
    """names: of the buffers that the step updates."""

    def __init__(self, binding: ModelBinding, names: Collection[str]) -> None:
        self._binding = binding
        self._written = [slot for slot in binding.slots if slot.name in names]
        self._storages: dict[int, list[TensorBinding]] = {}
        self._seen = -1  # state of the binding that was looked at

    def refuse(self, inputs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raise BindError if an input, or another parameter or buffer, lies where such a buffer lies."""
        if not self._written:
            return
        if self._seen != self._binding.changes:
            self._look()
        for name, tensor in inputs:
            for slot in self._storages.get(_storage(tensor), ()):
                if _overlap(tensor, slot.get()):
                    raise BindError(
                        f"the input {name!r} lies in the memory of the buffer {slot.name!r}, {_WHY}"
                        "\n  give the call a copy that is as you want it: `.clone()`"
                    )

    def _look(self) -> None:
        self._seen, self._storages = self._binding.changes, {}
        for slot in self._written:
            self._storages.setdefault(slot.storage, []).append(slot)
        self._storages.pop(0, None)  # of tensors without elements
        for slot in self._binding.slots:
            for other in self._storages.get(slot.storage, ()):
                if other is not slot and _overlap(slot.get(), other.get()):
                    self._seen = -1
                    raise BindError(
                        f"the {slot.kind} {slot.name!r} lies in the memory of the buffer {other.name!r}, {_WHY}"
                        "\n  give each a tensor of its own, or plan the model again as it is"
                    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the stretches of memory from first to last element meet."""
    (begin, end), (start, stop) = _stretch(one), _stretch(other)
    return begin < stop and start < end


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (reach + 1) * tensor.element_size() * (tensor.numel() > 0)
