"""The example call of a model at a different size: fake tensors, without memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode

from remate_runtime.torch_private.fake_tensors import FakeTensorMode

from ..capture import trees
from .requested_sizes import Asking


def resized(
    asking: Asking, args: Sequence[Any], kwargs: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as fake tensors of other shapes, with the example's order of dimensions and gaps between
    rows."""
    call = (tuple(args), dict(kwargs))
    leaves = trees.tensors(call)
    mode = detect_fake_mode(leaves) or FakeTensorMode(allow_non_fake_inputs=True)
    tensors: list[torch.Tensor] = []
    for at, leaf in enumerate(leaves):
        shape = list(leaf.shape)
        for axis in asking.axes:
            if axis.leaf == at:
                shape[axis.axis] = sizes[axis.name]
        same = next(
            (m for m, other in zip(tensors, leaves, strict=False) if other is leaf and list(m.shape) == shape), None
        )
        tensors.append(_like(leaf, shape, mode) if same is None else same)
    return trees.substitute(call, tensors)


def _like(leaf: torch.Tensor, shape: list[int], mode: FakeTensorMode) -> torch.Tensor:
    strides, step, example_step = [0] * len(shape), 1, 1
    for axis in sorted(range(len(shape)), key=lambda axis: (leaf.stride(axis), -axis)):
        given = leaf.stride(axis)
        is_gap = given != example_step and (given == 0 or given > step)  # a slice of a wider tensor, or an expanded one
        strides[axis] = given if is_gap else step
        if given:
            step, example_step = strides[axis] * shape[axis], given * leaf.shape[axis]
    if leaf.device.type == "meta":
        tensor = torch.empty_strided(shape, strides, dtype=leaf.dtype, device="meta")
    else:
        with mode:
            tensor = torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
    return tensor.requires_grad_(leaf.requires_grad)
