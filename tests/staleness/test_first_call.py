"""What the first call of forward does, found without computing a step."""

from __future__ import annotations

import torch
from torch import nn

from remate_runtime.staleness import make_caches

X = torch.ones(2, 3)


class _Counting(nn.Module):
    """Every call writes a buffer; one of them keeps a table."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(x.sum())
        if self.table is None:
            self.table = torch.arange(3.0)
        return x * self.table


class _Filling(nn.Module):
    """Its first call fills a buffer with data."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(3))
        self.filled = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.filled:
            self.mean.copy_(x.mean(0))
            self.filled = True
        return x - self.mean


def test_a_buffer_that_every_call_writes_is_no_reason_to_refuse_a_table() -> None:
    model = _Counting()
    first = make_caches(model, (X,), {})
    assert (first.caches, first.by_data) == (("table",), ())
    assert model.table is not None
    assert torch.equal(model.table, torch.arange(3.0))
    assert model.calls.item() == 0


def test_a_buffer_that_only_the_first_call_fills_follows_from_data() -> None:
    model = _Filling()
    first = make_caches(model, (X,), {})
    assert (first.caches, first.by_data) == ((), ("mean",))
    assert not model.filled
    assert not model.mean.any()
