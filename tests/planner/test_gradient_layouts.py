"""Autograd copies a gradient that does not lie as it keeps it: the step makes that copy, and its memory is in the
plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import remate
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply, predicted_peak
from remate_runtime.format import GRADIENTS, encode

X = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
NUMBERS = 64  # bytes: the estimate is an upper bound of what numbers take that become tensors
Use = Callable[[Tensor, Tensor], Tensor]


class Using(nn.Module):
    def __init__(self, weight: Tensor, use: Use) -> None:
        super().__init__()
        self.weight, self.use = nn.Parameter(weight), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x, self.weight)


CASES: dict[str, tuple[Callable[[], Tensor], Use]] = {
    "einsum": (lambda: torch.randn(4, 16, 32), lambda x, w: torch.einsum("btd,edf->btef", x, w).tanh().mean()),
    "expanded": (lambda: torch.randn(300), lambda x, w: w.sum() * x.sum()),
    "transposed": (lambda: torch.randn(16, 64), lambda x, w: (w.t() @ x[0].t()).square().sum()),
    "of a transposed one": (lambda: torch.randn(64, 16).t(), lambda x, w: (x @ w).square().sum()),
    "of another order": (lambda: torch.randn(8, 64, 16).permute(2, 0, 1), lambda x, w: (x @ w.flatten(1)).sin().sum()),
    "of one that overlaps": (lambda: torch.randn(16, 1).expand(16, 64), lambda x, w: (x @ w).square().sum()),
    "of a slice": (lambda: torch.randn(16, 64), lambda x, w: (x @ w[:, :32]).square().sum()),
    "as it is": (lambda: torch.randn(16, 64), lambda x, w: (x @ w).square().sum()),
}


@pytest.mark.quick("expanded-accumulated")
@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_the_predicted_one(name: str, gradients: str) -> None:
    torch.manual_seed(0)
    weight, use = CASES[name]
    eager = Using(weight(), use)
    planned = apply(eager, remate.plan(eager, (X,), budget="100%", cost="cpu", gradients=gradients))
    results = []
    for model in (eager, planned):
        model.zero_grad()
        model(X).backward()
        model.zero_grad()
        results.append((peak_bytes(lambda model=model: model(X).backward()), model.weight.grad))
    (_, wanted), (peak, gradient) = results
    assert torch.equal(gradient, wanted)
    assert gradient.stride() == wanted.stride()
    if gradients == "retained":
        assert predicted_peak(planned) - NUMBERS <= peak <= predicted_peak(planned)


def test_what_lies_as_it_is_kept_is_not_copied() -> None:
    weight, use = CASES["as it is"]
    schedule = remate.plan(Using(weight(), use), (X,), budget="100%", cost="cpu")
    assert "aten.clone" not in encode(schedule).decode()
