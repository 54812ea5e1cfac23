"""Gradients that the step sums, and to which autograd then adds a gradient from elsewhere in the same backward.

Eager PyTorch adds all of them one after the other, in another order than a sum of sums: results differ by rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ..link.contract import Gradient
from ..torch_private.execution import graph_task


def watch_sums(node: Any, promised: Sequence[Gradient], delivered: Sequence[torch.Tensor | None]) -> None:
    """Warn if autograd adds to one of these gradients that is a sum.

    Args:
        node: The autograd node that returns them, in its backward. Its last inputs get them.
        promised: What the step says about them.
        delivered: The gradients.
    """
    for at, (gradient, tensor) in enumerate(zip(promised, delivered, strict=True), -len(promised)):
        if gradient.sum and type(tensor) is torch.Tensor:
            receiver, number = node.next_functions[at]
            if receiver is not None and not _has_hooks(receiver):
                _Watched(gradient.sum, tensor, number).receive_from(receiver)


def _has_hooks(receiver: Any) -> bool:
    """Whether hooks of a parameter may change its gradient."""
    return bool(getattr(getattr(receiver, "variable", None), "_backward_hooks", None))


class _Watched:
    """A gradient on its way. It does not refer to the tensor, so that autograd may add to it in place."""

    def __init__(self, what: str, tensor: torch.Tensor, number: int) -> None:
        self._what, self._number, self._content = what, number, _content(tensor)
        self._pass = graph_task()
        self._hook: Any = None

    def receive_from(self, receiver: Any) -> None:
        self._hook = receiver.register_prehook(self._arrived)

    def _arrived(self, gradients: Sequence[torch.Tensor | None]) -> None:
        self._hook.remove()
        total = gradients[self._number]
        if total is None or graph_task() != self._pass or _content(total) == self._content:
            return
        warnings.warn(
            f"the gradient of {self._what} is a sum within a scheduled step, and gets a part from elsewhere in the "
            "same backward (another call, a penalty on parameters, code around a planned part): eager PyTorch adds all "
            "parts in another order, so the results differ by rounding\n  for bitwise results, use a tensor once in "
            "what is planned, or plan all of what uses it together",
            UserWarning,
            stacklevel=2,
        )


def _content(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version
