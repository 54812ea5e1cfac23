"""Parameters and buffers that a model returns come back as what they are."""

from __future__ import annotations

import torch
from torch import nn

from remate_runtime import apply

from .small import data, seeded
from .stepping import schedule_of


class Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.rand(4))
        self.register_buffer("table", torch.rand(4))

    def forward(self, x):
        y = self.layer(x) * self.scale * self.table
        return y, self.layer.weight, self.scale, self.scale.detach(), self.table, x


def test_they_are_the_very_tensors():
    model = seeded(Returning())
    x = data(3, 4).requires_grad_()
    for differentiate in (None, ["0"], ["0", "1"]):
        planned = apply(model, schedule_of(model, (x,), differentiate=differentiate))
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                _, weight, scale, detached, table, same = planned(x)
            assert weight is model.layer.weight
            assert scale is model.scale
            assert table is model.table
            assert same.data_ptr() == x.data_ptr()
            assert not detached.requires_grad
            assert detached.data_ptr() == scale.data_ptr()


def test_gradients_pass_through_them():
    model = seeded(Returning())
    x = data(3, 4).requires_grad_()

    def penalty(out):
        return out[0].square().sum() + out[1].square().sum() + (out[2] * out[4]).sum()

    def decay(out):
        return out[1].square().sum()

    for differentiate in (None, ["0"]):
        planned = apply(model, schedule_of(model, (x,), differentiate=differentiate))
        for loss in (penalty, decay):
            rows = []
            for module in (model, planned):
                x.grad = None
                module.zero_grad()
                loss(module(x)).backward()
                rows.append([x.grad, *(p.grad for p in module.parameters())])
            for theirs, ours in zip(*rows, strict=True):
                assert (theirs is None) == (ours is None)
                assert theirs is None or torch.allclose(theirs, ours, rtol=1e-6, atol=0)
