"""The results of operators that torch infers wrongly, or for some types alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .grouped import grouped_mm
from .recurrent import LAYER, LAYER_BACKWARD, lstm_layer, lstm_layer_backward

# By operator, what makes empty tensors of the types that it returns for these arguments, on their device, or raises ValueError.
RESULTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._grouped_mm.default: grouped_mm,
    LAYER: lstm_layer,
    LAYER_BACKWARD: lstm_layer_backward,
}
