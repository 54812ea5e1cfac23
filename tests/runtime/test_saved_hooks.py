"""Hooks on saved tensors, which a schedule never calls: a warning at run time, an error while planning."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from remate.capture.capture_step import CaptureError, capture
from remate_runtime import apply

from .small import Mlp, data, seeded
from .stepping import schedule_of


def rounding(tensor):
    return tensor.to(torch.bfloat16)


def restoring(tensor):
    return tensor.float()


class Rounding(nn.Module):
    def __init__(self, hooks) -> None:
        super().__init__()
        self.layer, self.hooks = nn.Linear(4, 4), hooks

    def forward(self, x):
        with self.hooks():
            return self.layer(x).tanh().sum()


def test_hooks_around_a_call_are_warned_of():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify="never")  # which would see that gradients differ
    with saved_tensors_hooks(rounding, restoring), pytest.warns(UserWarning, match="ignores saved_tensors_hooks"):
        planned(x)


def test_those_of_torch_change_nothing():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    with save_on_cpu(), warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(x)
    capture(Rounding(save_on_cpu), (data(3, 4),))


def test_hooks_within_forward_are_refused():
    with pytest.raises(CaptureError, match=r"forward sets saved_tensors_hooks \('rounding'\)"):
        capture(Rounding(lambda: saved_tensors_hooks(rounding, restoring)), (data(3, 4),))
