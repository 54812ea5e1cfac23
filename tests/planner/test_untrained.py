"""A call that trains nothing is refused before tracing. A model in evaluation mode is planned with a warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import remate
from remate.errors import CaptureError


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def test_frozen_models_are_refused() -> None:
    with pytest.raises(CaptureError, match="all 4 parameters are frozen: there is nothing to train"):
        remate.plan(model().requires_grad_(False), (X,), budget="100%", cost="cpu")
    with pytest.raises(CaptureError, match="the model has no parameters"):
        remate.frontier(nn.Tanh(), (X,), budgets=["100%"], cost="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remate.plan(model().requires_grad_(False), (X.clone().requires_grad_(),), budget="100%", cost="cpu")


def test_evaluation_mode_is_told_of() -> None:
    with pytest.warns(UserWarning, match=r"in evaluation mode.*model.train\(\)") as warned:
        remate.plan(model().eval(), (X,), budget="100%", cost="cpu")
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="in evaluation mode"):
        remate.frontier(model().eval(), (X,), budgets=["100%"], cost="cpu")


def test_what_is_no_module_is_refused() -> None:
    for plan in (remate.plan, remate.frontier):
        with pytest.raises(CaptureError, match=r"the model is function, not a torch\.nn\.Module"):
            plan(lambda x: x, (X,), cost="cpu")
