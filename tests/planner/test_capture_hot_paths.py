"""Optimizations of tracing do not change the result."""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from remate.capture import torch_api
from remate.capture.capture_step import CaptureError, capture
from remate.capture.hot_paths import hot_paths
from tests.models import ZOO

Pair = namedtuple("Pair", "one other")
TREES: list[Any] = [
    3,
    None,
    (),
    [],
    {},
    (1, [2, (None, "a")], {"b": 4, "a": (5,)}),
    [Pair(1, [2]), OrderedDict(z=1, y=(2, 3))],
    ({"k": Pair((1,), {})},),
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_trees_are_what_torch_makes_of_them(tree: Any) -> None:
    leaves, spec = _pytree.tree_flatten(tree)
    mapped = _pytree.tree_map_only(int, str, tree)
    with hot_paths():
        assert _pytree.tree_flatten(tree) == (leaves, spec)
        assert _pytree.tree_leaves(tree) == leaves
        result = _pytree.tree_map_only(int, str, tree)
        assert result == mapped
        assert type(result) is type(mapped)
        assert _pytree.tree_unflatten(leaves, _pytree.tree_flatten(tree)[1]) == tree
    assert _pytree.tree_flatten.__module__ == _pytree.__name__


class Alike(nn.Module):
    """The same operators on tensors that differ in one thing each: type, strides, the type of a number, a missing
    argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, half = x * self.weight, (x * self.weight).half()
        values = [
            (y > 0) + True,
            y + 1,
            y.t() + 1,
            half + 1,
            y.flip(0) + 1.5,
            (y > 0) + 1,
            (y > 0) + 1.5,
            y.to(torch.int32) + True,
        ]
        values += [y.sum(0, keepdim=True) + y.sum(0), y.sum(0, dtype=torch.float64) + y.sum(1)]
        values += [torch.ops.aten.clone(y.t()), torch.ops.aten.clone(y.t(), memory_format=torch.contiguous_format)]
        values += [
            y[1:3] * 2,
            y[:2] * 2,
            y[:, 1:3] * 2,
            torch.complex(y, y).conj().angle(),
            torch.complex(y, y).angle(),
        ]
        return torch.stack([each.float().pow(2).sum() for each in values]).sum()


@pytest.mark.slow
@pytest.mark.quick("alike", "unet")
@pytest.mark.parametrize("name", ["alike", "mlp_mixer", "resnet", "unet"])
def test_nothing_that_is_traced_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, kwargs = (Alike(), (torch.randn(4, 4),), {}) if name == "alike" else ZOO[name].build()
    quick = capture(model, args, kwargs)
    monkeypatch.setattr(torch_api, "hot_paths", contextlib.nullcontext)
    monkeypatch.setattr(torch_api, "remembered", lambda mode: contextlib.nullcontext())
    assert repr(quick) == repr(capture(model, args, kwargs))


class Failing(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")


def test_garbage_is_collected_again_after_a_failure() -> None:
    assert gc.isenabled()
    with pytest.raises(CaptureError):
        capture(Failing(2, 2), (torch.randn(2, 2),))
    assert gc.isenabled()
