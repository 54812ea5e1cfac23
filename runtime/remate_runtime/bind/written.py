"""Checks that buffers which a step updates share no memory with other tensors that the step reads.

Eager PyTorch writes to such buffers during forward, so tensors that share their memory change at that moment. A
schedule writes new values at the end of forward, so it would compute with old values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ..errors import BindError
from ..operator_calls.overloads import storage_address
from .inputs import Inputs
from .model_binding import ModelBinding, TensorBinding

_WHY = "which the step updates: eager PyTorch reads the updated values, a schedule the old ones"


Given = tuple[tuple[str, torch.Tensor], ...]  # inputs by name


class WrittenBuffers:
    """Checks for shared memory.

    Args:
        binding: The model.
        names: The buffers that the step updates.
    """

    def __init__(self, binding: ModelBinding, names: Collection[str]) -> None:
        self._binding = binding
        self._inputs = Inputs(binding.planned.inputs, binding.model.forward, ordered=False, sized=True)
        self._written = [slot for slot in binding.slots if slot.name in names]
        self._storages: dict[int, list[TensorBinding]] = {}
        self._seen = -1  # `changes` of the binding at the last check

    def given(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> Given:
        """Return the original inputs of a matching call by name, if `refuse` has to check them."""
        if not self._written:
            return ()
        return tuple(zip(self._inputs.names, self._inputs.flatten(args, kwargs, device), strict=True))

    def refuse(self, inputs: Given) -> None:
        """Raise BindError if an input, parameter or other buffer overlaps such a buffer."""
        if not self._written:
            return
        if self._seen != self._binding.changes:
            self._look()
        for name, tensor in inputs:
            for slot in self._storages.get(storage_address(tensor), ()):
                if _overlap(tensor, slot.get()):
                    raise BindError(
                        f"the input {name!r} shares memory with the buffer {slot.name!r}, {_WHY}"
                        "\n  pass a copy: `.clone()`"
                    )

    def _look(self) -> None:
        self._storages = {}
        for slot in self._written:
            self._storages.setdefault(slot.storage, []).append(slot)
        self._storages.pop(0, None)  # tensors without elements
        for slot in self._binding.slots:
            for other in self._storages.get(slot.storage, ()):
                if other is not slot and _overlap(slot.get(), other.get()):
                    raise BindError(
                        f"the {slot.kind} {slot.name!r} shares memory with the buffer {other.name!r}, {_WHY}"
                        "\n  give each its own tensor, or plan the model again as it is"
                    )
        self._seen = self._binding.changes


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether the extents of two tensors overlap. Their storages must start at the same address."""
    (begin, end), (start, stop) = _extent(left), _extent(right)
    return begin < stop and start < end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + (reach + 1) * tensor.element_size() * (tensor.numel() > 0)
