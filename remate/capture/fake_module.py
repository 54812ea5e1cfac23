"""Models on the meta device: traced through fake CPU tensors, which have no memory either.

PyTorch registers no autograd for some operators on the meta device (nll_loss among them): a joint graph traced there
would silently lack gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from .fake_call import Fakes


def on_meta(model: torch.nn.Module) -> bool:
    return any(t.device.type == "meta" for t in (*model.parameters(), *model.buffers()))


def fake_module(
    model: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return the model and call with fake CPU tensors instead of meta tensors. `model` does not change. Raises
    CaptureError for a DTensor over a mesh of another device."""
    fakes = Fakes("cpu")

    def fake(tensor: object) -> Any:
        return fakes.of(tensor) if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta" else tensor

    copied = copy.deepcopy(model)  # it has no memory
    for module in copied.modules():
        for registered in (vars(module)["_parameters"], vars(module)["_buffers"]):
            for name, tensor in registered.items():
                registered[name] = fake(tensor)
        for name, value in module.__dict__.items():
            if isinstance(value, torch.Tensor):
                module.__dict__[name] = fake(value)
    return copied, _pytree.tree_map(fake, tuple(args)), _pytree.tree_map(fake, dict(kwargs))
