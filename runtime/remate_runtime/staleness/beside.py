"""An example call with tensors of the planned types, for use without a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ..bind.outputs import output_builder
from ..errors import BindError
from ..format.schedule import Model
from ..format.signature import input_leaves
from ..format.tensor_type import parse_type
from ..format.trees import map_inputs
from ..operator_calls.overloads import TORCH_DTYPES, empty

Call = tuple[Sequence[Any], Mapping[str, Any]]


def example_call(model: nn.Module, recorded: Model, device: torch.device) -> Call:
    """Return arguments of the planned types with random values: floating-point numbers in [0, 1), integers 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    leaves: list[torch.Tensor] = []
    names: dict[str, int] = {}
    for leaf in input_leaves(recorded.inputs):
        names[leaf.name] = len(leaves)
        if leaf.same in names:
            leaves.append(leaves[names[leaf.same]])
            continue
        kind = parse_type(leaf.text)
        dtype = TORCH_DTYPES[kind.dtype]
        number = torch.rand(kind.shape, generator=generator)
        tensor = empty(kind, torch.device("cpu") if kind.cpu else device)
        tensor.copy_(number if dtype.is_floating_point or dtype.is_complex else number.round())
        leaves.append(tensor.requires_grad_(leaf.grad))
    inputs = map_inputs(partial(_as_value, recorded=recorded), recorded.inputs)
    tree = {"tuple": [{"tuple": inputs.get("args", [])}, {"dict": inputs.get("kwargs", {})}]}
    try:
        return output_builder(tree, model)(leaves)
    except BindError as fault:
        raise BindError(
            f"verify cannot make inputs of the planned types: {str(fault).splitlines()[0]}\n  pass a batch: "
            "apply(..., verify=(args, kwargs))"
        ) from None


def _as_value(leaf: dict[str, Any], recorded: Model) -> dict[str, Any]:
    """Convert a leaf of inputs to one of outputs, which can be built."""
    if "live" in leaf:
        return {"literal": recorded.live[leaf["live"]].planned}
    return {"value": ""} if "tensor" in leaf else leaf
