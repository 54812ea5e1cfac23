"""Counts the storages of a step on fake tensors, which have no memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from remate_runtime.operators import DEVICES

from .torch_api import TorchDispatchMode, _pytree


class StorageCount(TorchDispatchMode):
    """Counts the bytes of live storages that operators allocated, and their peak."""

    def __init__(self, device: str, held: Sequence[torch.Tensor]) -> None:
        """Count on a device class, without the storages of `held`."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self.peak = 0
        self._device, self._unit = device, DEVICES[device].allocation
        self._outside: dict[int, torch.UntypedStorage] = {}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.leave_out(held)

    def begin(self, kept: bool = True) -> None:
        """Begin another step.

        Args:
            kept: What the last one keeps, such as the block of an arena, counts from the start.
        """
        self._live = {key: held for key, held in self._live.items() if kept and not held[0].expired()}
        self.peak = sum(size for _, size in self._live.values())

    def leave_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """Do not count the storages of these tensors."""
        for tensor in tensors:
            storage: Any = tensor.untyped_storage()
            self._outside[storage._cdata] = storage  # a reference, so that its address is not reused
            self._live.pop(storage._cdata, None)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._device:
                self._note(leaf.untyped_storage())
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result

    def _note(self, storage: Any) -> None:
        key: int = storage._cdata
        if key not in self._outside and (key not in self._live or self._live[key][0].expired()):
            self._live[key] = StorageWeakRef(storage), -(-storage.nbytes() // self._unit) * self._unit
