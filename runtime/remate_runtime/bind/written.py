"""Buffers that a step updates must not share memory with anything else that the step reads.

Eager writes into them during forward, and whatever shares their memory changes too. A schedule has one value of each
tensor and writes new values when forward ends, so it would compute with the old values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ..errors import BindError
from ..operator_calls.overloads import storage_address
from .inputs import Inputs
from .model_binding import ModelBinding, TensorBinding

_WHY = "which the step updates: eager reads what it has written by then, a schedule what was there before"


Given = tuple[tuple[str, torch.Tensor], ...]  # inputs by name


class WrittenBuffers:
    """Checks for shared memory.

    Attributes:
        binding: The model.
        names: The buffers that the step updates.
    """

    def __init__(self, binding: ModelBinding, names: Collection[str]) -> None:
        self._binding = binding
        self._inputs = Inputs(binding.planned.inputs, binding.model.forward, ordered=False, sized=True)
        self._written = [slot for slot in binding.slots if slot.name in names]
        self._storages: dict[int, list[TensorBinding]] = {}
        self._seen = -1  # the last checked state of the binding

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Given:
        """Return the original inputs of a call that matches the recorded one, if `refuse` has to check them."""
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
                        f"the input {name!r} lies in the memory of the buffer {slot.name!r}, {_WHY}"
                        "\n  give the call a copy that is as you want it: `.clone()`"
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
                        f"the {slot.kind} {slot.name!r} lies in the memory of the buffer {other.name!r}, {_WHY}"
                        "\n  give each a tensor of its own, or plan the model again as it is"
                    )
        self._seen = self._binding.changes


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors overlap from first to last element, if their storages start at the same address."""
    (begin, end), (start, stop) = _stretch(left), _stretch(right)
    return begin < stop and start < end


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + (reach + 1) * tensor.element_size() * (tensor.numel() > 0)
