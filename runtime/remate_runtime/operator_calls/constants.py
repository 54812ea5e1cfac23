"""Constants of a model's schedules as tensors, each made once: steps of other sizes and forms read the same ones."""

from __future__ import annotations

from typing import Any

import torch

from ..format.tensor_type import TensorType
from .overloads import constant


class Constants:
    """They stay as long as this does: what a step at a new size adds to them would be memory of that step."""

    def __init__(self) -> None:
        self._made: dict[str, torch.Tensor] = {}

    def tensor(self, type_: TensorType, data: tuple[Any, ...], device: torch.device) -> torch.Tensor:
        """The tensor of a constant of a file, which nothing may write to."""
        key = f"{type_} {device} {data!r}"
        if key not in self._made:
            with torch.inference_mode(False):
                self._made[key] = constant(type_, data, device)
        return self._made[key]
