"""Models that train nothing, or seem to train nothing."""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), (torch.randn(8, 64),)


def all_frozen():
    model, args = build()
    return model.requires_grad_(False), args


def frozen_with_an_input_that_trains():
    model, (x,) = all_frozen()
    return model, (x.requires_grad_(),)


def without_parameters():
    return nn.ReLU(), (torch.randn(2, 4),)


def in_evaluation():
    model, args = build()
    return model.eval(), args
