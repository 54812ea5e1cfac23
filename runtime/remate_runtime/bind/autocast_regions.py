"""Several calls within one autocast region.

There eager PyTorch casts a parameter once, and adds the gradients of all calls in the lower precision. A schedule casts
at each call, and autograd adds in the parameter's precision. Regions have no identity. This module finds out with a
tensor of its own, whose cast eager PyTorch keeps in the same way.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..flat_step.graph import Graph
from ..support.callers import frames_to_caller
from ..torch_private.execution import dispatch_modes


class AutocastRegion:
    """Warns, once, if two calls of a model that need gradients are in one region, and a schedule runs one of them."""

    def __init__(self) -> None:
        self._probe: torch.Tensor | None = None
        self._cast: Any = None  # the autograd node of the probe's cast in the latest call
        self._scheduled = self._warned = False  # whether a schedule ran a call of the latest region

    def call(self, device: torch.device, scheduled: bool) -> None:
        """Note a call.

        Args:
            device: The model's device.
            scheduled: Whether a schedule runs the call, instead of the model's own forward.
        """
        if self._warned or not torch.is_grad_enabled() or not torch.is_autocast_enabled(device.type):
            return
        if not torch.is_autocast_cache_enabled() or dispatch_modes():
            return
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        if self._probe is None or self._probe.device != device:
            self._probe = torch.ones(1, 1, dtype=torch.float32, device=device, requires_grad=True)
        before, self._cast = self._cast, _cast_of(self._probe)
        again = before is not None and self._cast is before
        self._scheduled = scheduled or (again and self._scheduled)
        if again and self._scheduled:
            self._warned = True
            dtype = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
            warnings.warn(
                "two calls of a scheduled model are within one torch.autocast block: eager PyTorch casts parameters "
                "once per block (after an optimizer step, too) and adds the gradients of such calls in "
                f"{dtype}, a schedule adds them in the precision of the parameters, so results differ by rounding"
                "\n  for bitwise results, give each call a block of its own, or set cache_enabled=False",
                UserWarning,
                stacklevel=frames_to_caller(),
            )


def casts_parameters(graph: Graph) -> bool:
    """Return whether a step casts a parameter."""
    casts = (op for op in graph.operations if op.op == "aten._to_copy")
    return any(graph.values[value].kind == "parameter" for op in casts for value in op.reads)


def _cast_of(probe: torch.Tensor) -> Any:
    node = torch.mm(probe, probe).grad_fn
    return None if node is None else node.next_functions[0][0]
