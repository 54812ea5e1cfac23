"""Parameters that are frozen or trained again between calls: forward may ask for it, so the next call is checked."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from remate_runtime import StaleModelError, apply
from tests.runtime.small import data, seeded
from tests.runtime.stepping import schedule_of


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return self.outer(y * 1.5 if self.inner.weight.requires_grad else y * 0.5).sum()


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_branch_by_requires_grad_is_noticed(calls: int) -> None:
    model = seeded(Asking())
    planned = apply(model, schedule_of(model, (data(4, 8),)))
    for _ in range(calls):
        planned(data(4, 8)).backward()
    model.inner.weight.requires_grad_(False)
    with pytest.raises(StaleModelError, match="does not compute what the model computes now"):
        planned(data(4, 8))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(self.trunk(x).tanh()), self.second(x)


def test_any_part_may_be_frozen() -> None:
    """Also all that an output follows from, which requires no gradient in eager PyTorch then."""
    eager, model, x = seeded(Heads()), seeded(Heads()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    for trained in itertools.product((True, False), repeat=3):
        for own in (eager, model):
            own.zero_grad()
            for part, train in zip((own.trunk, own.first, own.second), trained, strict=True):
                part.requires_grad_(train)
        wanted, got = eager(x), planned(x)
        assert all(map(torch.equal, got, wanted))
        for outputs in (wanted, got) if any(trained) else ():
            torch.stack([y.square().sum() for y in outputs]).sum().backward()
        for p, q in zip(eager.parameters(), model.parameters(), strict=True):
            assert p.grad is q.grad is None or (
                p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
            )
