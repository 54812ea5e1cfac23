"""Whatever recomputations a plan names, a step's results are eager's: only memory and time may change."""

from __future__ import annotations

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remate.capture.capture_step import capture
from remate_runtime import apply
from remate_runtime.flat_step.graph import FlatRecompute

from .small import data, seeded
from .stepping import assert_same, step, with_recomputes


class Everything(nn.Module):
    """Batch norm, dropout, in-place candidates, views, slices of one storage, a shared parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop, self.lin = (
            nn.Conv1d(4, 6, 3),
            nn.BatchNorm1d(6),
            nn.Dropout(0.4),
            nn.Linear(6, 6),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norm(self.conv(x)))
        left, right = self.drop(y).transpose(1, 2).chunk(2, 1)
        y = self.lin(torch.relu(self.lin(left) + right)) * torch.sigmoid(right)
        features = self.drop(y).flatten(1)
        return features.exp().add(1).log().mean(), features


_MODEL, _X = seeded(Everything()), data(3, 4, 10)
_CAPTURED = capture(_MODEL, (_X,))
_EAGER = copy.deepcopy(_MODEL)
_WANTED = [step(_EAGER, (_X,), seed=seed) for seed in range(2)]


def _legal(graph):
    forward = [i for i in range(graph.backward_start) if not graph.operations[i].view]
    recompute = st.sampled_from(forward).flatmap(
        lambda op: st.builds(FlatRecompute, st.just(op), st.integers(op + 1, len(graph.operations) - 1))
    )
    return st.lists(recompute, max_size=25)


@settings(max_examples=30)
@given(st.data())
def test_any_recomputes_give_eager_s_step(draw):
    recomputes = sorted(draw.draw(_legal(_CAPTURED.graph)), key=lambda recompute: recompute.before)
    planned = apply(copy.deepcopy(_MODEL), with_recomputes(_CAPTURED, lambda graph: recomputes))
    for seed, wanted in enumerate(_WANTED):
        assert_same(step(planned, (_X,), seed=seed), wanted)
    with torch.no_grad():
        planned(_X)
