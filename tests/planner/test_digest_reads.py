"""A digest records what forward reads, and not what the capture itself reads while it watches forward."""

from __future__ import annotations

import torch
from torch import nn

from remate.capture.capture_step import capture


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1)
        self.scale, self.unread, self.table = 2.0, 3, torch.ones(4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.norm(self.linear(x))) * self.scale + self.table
        self.get_buffer("mean").mul_(0.9).add_(y.detach().mean(0))
        self.rows, self.largest = x.shape[0], y.detach().amax()
        return y.square().mean()


def test_exactly_what_forward_reads_is_in_the_digest() -> None:
    digest = capture(Own(), (torch.randn(3, 4),)).digest
    assert digest is not None
    assert {group.at: group.reads for group in digest.modules} == {
        ("",): {"scale": 2.0},
        ("linear",): {},
        ("norm",): {"eps": 1e-05, "momentum": 0.1, "track_running_stats": True},
        ("drop",): {"inplace": False, "p": 0.1},
    }
    assert not digest.objects
