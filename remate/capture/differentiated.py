"""Which outputs of a model get a gradient in the planned step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from remate_runtime.format import Model, output_leaves

from ..errors import CaptureError
from . import torch_api, trees
from .output_gradients import requested_layouts

EVERY = ("*",)
"""As `differentiate=`: every output that has a gradient in eager."""
OF_A_STAGE = ("*:preserve",)
"""As `differentiate=`: every output, with gradients in the memory layouts of the outputs."""
_NAMES_OF_A_PART = ("loss", "*")
OF_A_PART = ("loss", "*:preserve")
"""As `differentiate=`: the field `loss`, else every output. The model uses all outputs of its parts, so a single scalar
output of a part (a penalty) is not the loss."""

Outputs = Sequence[tuple[str, torch.Tensor]]


def differentiated(outputs: Outputs, returned: int, result: object, requested: Sequence[str] | None) -> dict[str, str]:
    """The names of the outputs that get a gradient, with the memory layouts of the gradients (`output_gradients`).

    Without `requested` it is the field `loss` of a dict or record, else the only scalar among several differentiable
    outputs, if it is in a tuple or list and follows from the others (`return logits, loss`). A named field such as
    `aux` need not be the loss, nor does a scalar beside the prediction (`return y, penalty`). Else it is every
    differentiable output. Attributes that forward sets count if they are scalars.

    Args:
        outputs: Names and tensors, those that forward returns first.
        returned: How many of them forward returns; the others are attributes that it sets.
        result: What forward returned.
        requested: What the user chose, OF_A_STAGE or OF_A_PART; None for the default.

    Returns:
        Names of some of `outputs`, with "" or the layout that was chosen.

    Raises:
        CaptureError: A requested output has no gradient, or a layout does not fit it.
    """
    able = {name: tensor for name, tensor in outputs if tensor.requires_grad}
    names, layouts = requested_layouts(requested, able)
    every = {n for at, (n, t) in enumerate(outputs) if n in able and (at < returned or t.numel() == 1)}
    chosen = _chosen(able, every, result, names)
    usual = layouts.get("*", "")
    return {name: layouts.get(name, usual) for name, _ in outputs if name in chosen}


def _chosen(able: dict[str, torch.Tensor], every: set[str], result: object, chosen: Sequence[str] | None) -> set[str]:
    """The names of the outputs that get a gradient.

    Args:
        able: The differentiable outputs.
        every: Those of them that get a gradient if all do.
        result: As for `differentiated`.
        chosen: What the user chose, without layouts.
    """
    if chosen == EVERY:
        return every
    if chosen is not None and chosen != _NAMES_OF_A_PART:
        return _checked(chosen, able)
    if loss := _loss_field(result, able):
        return loss
    scalars = {name for name in every if able[name].dim() == 0}
    if chosen is not None or len(scalars) != 1 or not all(p.isdigit() for p in next(iter(scalars)).split(".")):
        return every
    leading = torch_api.nodes_below([able[name] for name in scalars])
    return scalars if all(able[name].grad_fn in leading for name in every) else every


def choice_text(model: Model) -> str:
    """Say which outputs get a gradient, and how to choose others; "" if all differentiable outputs do."""
    leaves = list(output_leaves(model.outputs))
    given, without = [leaf.name for leaf in leaves if leaf.grad], [leaf.name for leaf in leaves if leaf.detached]
    if not given or not without:
        return ""
    text = f"planning the gradient of {', '.join(map(repr, given))} only, not of {', '.join(map(repr, without))}"
    return f"{text}; differentiate={[*given, *without]!r} plans all"


def _checked(names: Sequence[str], able: dict[str, torch.Tensor]) -> set[str]:
    for name in names:
        if name not in able:
            known = ", ".join(able) or "none"
            raise CaptureError(
                f"output {name!r} has no gradient", hint=f"outputs that have one: {known}; '*' means all"
            )
    return set(names)


def _loss_field(result: object, able: dict[str, torch.Tensor]) -> set[str]:
    loss = _field(result)
    return {name for name, tensor in able.items() if tensor is loss and tensor.dim() == 0}


def _field(result: object) -> Any:
    """The field `loss` of a dict or record, which may be in a tuple or list."""
    kind, fields = trees.children(result) or ("", {})
    if kind in ("dict", "record"):
        return fields.get("loss")
    below = [_field(item) for item in fields.values()]
    return next((loss for loss in below if loss is not None), None)
