"""Proofs that rely on estimated costs say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import remate
from remate.errors import InfeasibleError


def test_what_rests_on_estimated_workspaces_says_so() -> None:
    """A floor that is proven for estimates is not a fact about the device."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), torch.randn(64, 8)
    with pytest.raises(InfeasibleError, match=r"if the estimated workspaces are right(.|\n)*cost='measured'"):
        remate.plan(model, (x,), budget="1%", cost="cpu", progress=None)
    with pytest.raises(InfeasibleError) as raised:
        remate.plan(model, (x,), budget="1%", cost="measured", cache=False, progress=None)
    assert "estimated" not in str(raised.value)


def test_operators_whose_needs_no_estimate_knows_are_named() -> None:
    @torch.library.custom_op("estimates_of_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, gradient: gradient * 2)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twice(self.lin(x)).sum()

    with pytest.warns(UserWarning, match=r"do not know what estimates_of_tests\.twice"):
        remate.plan(Twice(), (torch.randn(4, 8),), budget="100%", cost="cpu", progress=None)
