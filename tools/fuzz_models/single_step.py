"""One step of a model that returns its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .case import Options
from .comparison import Seen


def gradients(model: nn.Module, options: Options, *arguments: Any) -> Seen:
    """The loss and the gradients of parameters, without a change of the model."""
    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    with options.casting():
        loss = model(*arguments)
    loss.backward()
    seen: Seen = {"loss": loss.detach().clone()}
    for name, parameter in model.named_parameters():
        seen[f"gradient of {name}"] = None if parameter.grad is None else parameter.grad.clone()
    return seen
