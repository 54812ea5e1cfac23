"""What stands in a traced graph where a block is not traced: one node for its forward, one for its backward."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from .errors import UnlikeError
from .specs import layout

_NAME = "remate_capture::stands_for"
FORWARD, BACKWARD = "forward", "backward"

torch.library.define(_NAME, "(Tensor[] of, str what) -> Tensor[]")
STANDS_FOR: Any = torch.ops.remate_capture.stands_for.default
"""The operator. of: tensors that flow into what it stands for. what: see `text`."""


class Standing(msgspec.Struct, frozen=True):
    """number: of the block. part: FORWARD or BACKWARD. made: shape, strides, type and device of each result."""

    number: int
    part: str
    made: tuple[tuple[tuple[int, ...], tuple[int, ...], str, str], ...]


def text(number: int, part: str, made: list[torch.Tensor]) -> str:
    """A Standing as the operator takes it."""
    kinds = tuple((tuple(t.shape), tuple(t.stride()), str(t.dtype).removeprefix("torch."), str(t.device)) for t in made)
    return msgspec.json.encode(Standing(number, part, kinds)).decode()


def standing(what: str) -> Standing:
    return msgspec.json.decode(what, type=Standing)


@torch.library.register_fake(_NAME)
def _made(of: list[torch.Tensor], what: str) -> list[torch.Tensor]:
    return [
        torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)
        for shape, strides, dtype, device in standing(what).made
    ]


class Parts(msgspec.Struct, frozen=True):
    """What stands for a block. forward, backward: texts. plain: of its outputs, those that have no gradient. tangents: layouts
    of the gradients of the others. wanted: for each tensor that it takes, its place among the gradients, None if it has none."""

    forward: str
    backward: str
    plain: tuple[int, ...]
    tangents: tuple[tuple[Any, ...], ...]
    wanted: tuple[int | None, ...]


class Opaque(torch.autograd.Function):
    """`apply(parts, *tensors)`: the outputs of a block, traced as one node, and as one more in backward."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.parts = parts
        made = STANDS_FOR(list(tensors), parts.forward)
        ctx.mark_non_differentiable(*(made[at] for at in parts.plain))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        parts: Parts = ctx.parts
        given = [grad for at, grad in enumerate(grads) if at not in parts.plain]
        if any(grad is None for grad in given):
            raise UnlikeError("a gradient is missing")
        tangents = [grad for grad in given if grad is not None]
        if tuple(_seen(grad) for grad in tangents) != parts.tangents:
            raise UnlikeError("a gradient is laid out otherwise")
        made = STANDS_FOR(tangents, parts.backward)
        return None, *(None if at is None else made[at] for at in parts.wanted)


def _seen(grad: torch.Tensor) -> tuple[Any, ...]:
    shape, strides, offset, dtype, device, _, conjugate, negative = layout(grad)
    return shape, strides, offset, dtype, device, conjugate, negative


def tangent_layout(value: torch.Tensor) -> tuple[Any, ...]:
    return _seen(value)
