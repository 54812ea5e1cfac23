"""Schedules that name sizes, made by hand: numbers of a capture at prime sizes that nothing else of the model has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F

from remate_runtime.format import Block, Dimension, Operation, Schedule, constant, dimension, fingerprint

B, T = 11, 13  # the sizes of the capture


class Attention(nn.Module):
    """A block with causal attention and dropout: 2 heads of 3, width 6."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(6), nn.Linear(6, 18), nn.Linear(6, 6)
        self.up, self.down, self.drop = nn.Linear(6, 24), nn.Linear(24, 6), nn.Dropout(p)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-1, -2) / 3**0.5).masked_fill(~mask, float("-inf"))
        mixed = (self.drop(F.softmax(scores, -1)) @ v).transpose(1, 2).reshape(b, t, 6)
        y = x + self.out(mixed)
        y = y + self.down(F.gelu(self.up(y)))
        loss = y.pow(2).mean() if labels is None else F.cross_entropy(y.flatten(0, 1), labels.flatten())
        return {"loss": loss, "length": t}


def named(number: int) -> Any:
    """Return the expression for a number of the capture: c * b^i * t^j."""
    if number == 0:
        return None
    expression = constant(1)
    for name, size in (("b", B), ("t", T)):
        while number % size == 0:
            number, expression = number // size, expression * dimension(name)
    return str(expression * constant(number)) if expression.dims else None


def sized(schedule: Schedule, **dims: Dimension) -> Schedule:
    """A schedule that was captured at b=11, t=13, with names for what follows from these."""
    model = schedule.model
    changed = replace(
        schedule,
        model=replace(model, dims=dims, inputs=_tree(model.inputs), outputs=_tree(model.outputs)),
        blocks={name: _block(block) for name, block in schedule.blocks.items()},
    )
    return replace(changed, model=replace(changed.model, fingerprint=fingerprint(changed)))


def ranged(schedule: Schedule, **changes: Dimension) -> Schedule:
    """Return the schedule of a capture for b from 2 to 24 and t from 2 to 40, but for the changed sizes."""
    dims = {"b": Dimension(min=2, max=24, planned=B), "t": Dimension(min=2, max=40, planned=T)}
    return sized(schedule, **{**dims, **changes})


def _block(block: Block) -> Block:
    return replace(
        block,
        inputs={name: _type(text) for name, text in block.inputs.items()},
        forward=tuple(map(_operation, block.forward)),
        backward=tuple(map(_operation, block.backward)),
    )


def _operation(op: Operation) -> Operation:
    out = _type(op.out) if isinstance(op.out, str) else tuple(None if text is None else _type(text) for text in op.out)
    kwargs = {name: _argument(value) for name, value in op.kwargs.items()}
    return replace(op, args=_argument(op.args), kwargs=kwargs, out=out, workspace=_workspace(int(op.workspace)))


def _workspace(number: int) -> int | str:
    """Kernels on the CPU take some bytes besides: 16 for a scalar, say."""
    for fixed in (0, 16):
        if number > fixed and named(number - fixed):
            return f"{named(number - fixed)}+{fixed}".removesuffix("+0")
    return number


def _type(text: str) -> str:
    return re.sub(r"(?<=[\[{,])\d+", lambda match: named(int(match[0])) or match[0], text)


def _argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_argument, value))
    expression = named(value) if type(value) is int else None
    return {"size": expression} if expression else value


def _tree(node: Any) -> Any:
    if isinstance(node, Mapping):
        leaf = {"tensor": _type, "literal": _argument}
        return {key: leaf[key](item) if key in leaf else _tree(item) for key, item in node.items()}
    return [_tree(item) for item in node] if isinstance(node, (list, tuple)) else node
