"""The plan replaces checkpoints: what is captured runs once, and gives the gradients that the checkpoint gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.planner.interpreter import compare

from .test_capture_features import Returns, ops, x


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool) -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda b: F.dropout(self.linear(b).tanh(), 0.5), a, use_reentrant=reentrant)

    captured = compare(Returns(function), (x(grad=True),))
    assert ops(captured).count("aten.tanh") == 1


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad", "ignore:forward uses torch.utils.checkpoint"
)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_of_what_requires_no_gradient(reentrant: bool) -> None:
    """A reentrant one gives its parameters none then, not even those that it reads in a closure."""

    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        inner = checkpoint(lambda b: self.linear(b).tanh(), a.detach(), use_reentrant=reentrant)
        return self.other(a) + inner

    captured = compare(Returns(function, other=nn.Linear(4, 4)), (x(grad=True),))
    assert ("linear.weight" in "".join(captured.graph.values[p].name for p, _ in captured.graph.gradients)) != reentrant
