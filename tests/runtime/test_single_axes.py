"""Axes of one element have any stride, and kernels that test for channels last look at it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import remate
from remate_runtime import apply
from remate_runtime.flat_step.graph import Op, Ref
from remate_runtime.operator_calls.overloads import in_place, laid_out_as_without, overload

from .small import data, seeded
from .stepping import assert_same, step

SHAPES = (2, 6, 1, 1), (2, 1, 4, 5), (1, 6, 4, 5), (2, 6, 1, 5), (2, 3, 1, 4, 5)


@pytest.mark.parametrize("name", ["add.Tensor", "mul.Tensor", "relu", "sigmoid", "pow.Tensor_Scalar", "mul.Scalar"])
def test_what_is_written_over_gets_the_strides_of_a_result(name: str) -> None:
    args = (Ref(0), Ref(1)) if name.endswith(".Tensor") else (Ref(0),)
    op = Op("op", f"aten.{name}", args, {}, (0,), (1,), multiple=False, view=False, random=False)
    plain, write = overload(op.op), laid_out_as_without(in_place(op), op)
    for shape in SHAPES:
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        usual = torch.rand(shape)
        odd = torch.empty(shape, memory_format=last).copy_(usual)
        for first in (usual, odd):
            others = [(usual,), (odd,)] if name.endswith(".Tensor") else [(2.0,) if "Scalar" in name else ()]
            for rest in others:
                expected = plain(first, *rest)
                tensors = [each for each in (first, expected, *rest) if isinstance(each, torch.Tensor)]
                if len({each.is_contiguous() for each in tensors}) == 1:  # they have one type
                    onto = torch.empty_strided(shape, first.stride()).copy_(first)
                    result = write(onto, *rest)
                    assert result.data_ptr() == onto.data_ptr()
                    assert result.stride() == expected.stride()
                    assert torch.equal(result, expected)


class Pooled(nn.Module):
    """Images of one pixel, as in the last stage of a network for small images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.relu = nn.Conv2d(3, 220, 3, stride=9), nn.BatchNorm2d(220), nn.ReLU()
        self.first, self.second, self.middle = nn.Conv2d(220, 220, 1), nn.Conv2d(220, 220, 1), nn.BatchNorm2d(220)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm(self.stem(x)))
        z = self.middle(self.first(y) + y)
        return self.second(self.relu(z) + z).square().mean()


def test_gradients_are_eagers_to_the_bit() -> None:
    model = seeded(Pooled()).train().to(memory_format=torch.channels_last)
    x = data(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    schedule = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
    assert_same(step(apply(copy.deepcopy(model), schedule), (x,)), step(model, (x,)), 0.0)
