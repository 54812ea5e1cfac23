"""Opaque blocks: two nodes, for forward and backward, represent an untraced block in a traced graph."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from .errors import OtherLayoutError, UnlikeError
from .specs import layout

_NAME = "remate_capture::stands_for"
FORWARD, BACKWARD, TANGENT = "forward", "backward", "tangent"

torch.library.define(_NAME, "(Tensor[] of, str what) -> Tensor[]")
STANDS_FOR: Any = torch.ops.remate_capture.stands_for.default
"""The operator of these nodes. of: the tensors that the block reads. what: see `text`."""


Kind = tuple[tuple[int, ...], tuple[int, ...], str, str]


class Standing(msgspec.Struct, frozen=True):
    """Describes a node. number: of the block. part: FORWARD, BACKWARD, or TANGENT for a gradient that a block receives.
    results: shape, strides, type and device of each result."""

    number: int
    part: str
    results: tuple[Kind, ...]


def text(number: int, part: str, tensors: list[torch.Tensor]) -> str:
    """Encode a Standing as the operator's argument."""
    kinds = tuple(_kind(tuple(t.shape), tuple(t.stride()), t.dtype, t.device) for t in tensors)
    return msgspec.json.encode(Standing(number, part, kinds)).decode()


def _kind(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Kind:
    return shape, strides, str(dtype).removeprefix("torch."), str(device)


def standing(what: str) -> Standing:
    return msgspec.json.decode(what, type=Standing)


def _made(of: list[torch.Tensor], what: str) -> list[torch.Tensor]:
    return [
        torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)
        for shape, strides, dtype, device in standing(what).results
    ]


_LIBRARY: Any = torch.library  # its functions have no types
_LIBRARY.register_fake(_NAME)(_made)


class BlockParts(msgspec.Struct, frozen=True):
    """The nodes of an opaque block.

    Attributes:
        number: The block's number.
        forward: Text of the forward node.
        backward: Text of the backward node.
        plain: Indices of the outputs without a gradient.
        tangents: Layouts of the gradients of the other outputs.
        wanted: For each input the index of its gradient, or None.
    """

    number: int
    forward: str
    backward: str
    plain: tuple[int, ...]
    tangents: tuple[tuple[Any, ...], ...]
    wanted: tuple[int | None, ...]


class OpaqueBlock(torch.autograd.Function):
    """`apply(parts, *tensors)` returns the outputs of a block, traced as one node in forward and one in backward."""

    @staticmethod
    def forward(ctx: Any, parts: BlockParts, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.parts = parts
        outputs = STANDS_FOR(list(tensors), parts.forward)
        ctx.mark_non_differentiable(*(outputs[at] for at in parts.plain))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        parts: BlockParts = ctx.parts
        given = [grad for at, grad in enumerate(grads) if at not in parts.plain]
        if any(grad is None for grad in given):
            raise UnlikeError("a gradient is missing")
        tangents = [grad for grad in given if grad is not None]
        layouts = tuple(tangent_layout(grad) for grad in tangents)
        if layouts != parts.tangents:
            raise OtherLayoutError(parts.number, layouts)
        gradients = STANDS_FOR(tangents, parts.backward)
        return None, *(None if at is None else gradients[at] for at in parts.wanted)


class Laid(torch.autograd.Function):
    """`apply(tensor, what)` returns the tensor. Its gradient becomes the one that the text `what` describes."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, what: str) -> torch.Tensor:
        ctx.what = what
        return torch.ops.aten.alias.default(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return STANDS_FOR([*grads], ctx.what)[0], None


def tangent_layout(grad: torch.Tensor) -> tuple[Any, ...]:
    shape, strides, offset, dtype, device, _, conjugate, negative = layout(grad)
    return shape, strides, offset, dtype, device, conjugate, negative


def of_layout(seen: tuple[Any, ...]) -> str:
    """Return the text of a gradient with the layout of `tangent_layout`. Raises UnlikeError if no tensor has it."""
    shape, strides, offset, dtype, device, conjugate, negative = seen
    if offset or conjugate or negative:
        raise UnlikeError("a gradient has a layout that no new tensor has")
    return msgspec.json.encode(Standing(0, TANGENT, (_kind(shape, strides, dtype, device),))).decode()
