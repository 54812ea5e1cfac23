"""Constants of a model's schedules as tensors, each created once and shared by steps of all sizes and forms."""

from __future__ import annotations

import torch

from ..format.tensor_type import TensorType
from .overloads import constant


class Constants:
    """Keeps constants for its own lifetime: the constants of a step at a new size would otherwise count as its
    memory."""

    def __init__(self) -> None:
        self._made: dict[str, torch.Tensor] = {}

    def tensor(self, type_: TensorType, data: tuple[object, ...], device: torch.device) -> torch.Tensor:
        """Return the tensor of a constant of a file. Nothing may write to it."""
        key = f"{type_} {device} {data!r}"
        if key not in self._made:
            with torch.inference_mode(False):
                self._made[key] = constant(type_, data, device)
        return self._made[key]
