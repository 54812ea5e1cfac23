"""Assertions on values are not dropped: they are refused, with their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import CaptureError, capture

from ..runtime.small import data

TORCH: Any = torch


class Asserting(nn.Module):
    def __init__(self, check) -> None:
        super().__init__()
        self.layer, self.check = nn.Linear(4, 4), check

    def forward(self, x):
        y = self.layer(x)
        self.check(y)
        return y.sum()


CHECKS = {
    "bare": lambda y: TORCH._assert_async(y.isfinite().all()),
    "with a message": lambda y: TORCH._assert_async(y.isfinite().all(), "not finite"),
    "of an input": lambda y: torch.ops.aten._assert_async.msg((y.detach() < 1e6).all(), "too large"),
}


@pytest.mark.slow("bare")
@pytest.mark.parametrize("check", CHECKS)
def test_an_assertion_on_values_is_refused(check):
    with pytest.raises(CaptureError, match=r"torch\._assert_async") as raised:
        capture(Asserting(CHECKS[check]), (data(3, 4),))
    assert "test_capture_assertions.py" in str(raised.value)


def test_assertions_on_sizes_are_not():
    def check(y):
        assert y.shape[-1] == 4
        torch._check(y.shape[0] == 3)
        torch._assert(y.dim() == 2, "two axes")

    capture(Asserting(check), (data(3, 4),))
