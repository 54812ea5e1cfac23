"""The memory layouts of the gradients of outputs.

Backward is traced with tangents of these layouts, because kernels choose their order of sums by the layout. Forward
does not show them: the loss gives the gradient of an output its layout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import torch
from torch.fx import Node

from remate_runtime.format import (
    CHANNELS_LAST,
    CONTIGUOUS,
    LAYOUT,
    PRESERVE,
    axes_of,
    has_layout,
    packed_strides,
)

from ..errors import CaptureError

_ENTRY = re.compile(rf"(.+):({LAYOUT})", re.DOTALL)
_COPY, _CLONE = torch.ops.aten.copy.default, torch.ops.aten.clone.default


def requested_layouts(
    requested: Sequence[str] | None, names: Collection[str]
) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Split the entries of `differentiate=` into names of outputs and memory layouts.

    Args:
        requested: Entries `NAME` or `NAME:LAYOUT`.
        names: Names of outputs, which may have a colon.

    Returns:
        The names, and the layouts by name.
    """
    if requested is None:
        return None, {}
    matches = {entry: None if entry in names else _ENTRY.fullmatch(entry) for entry in requested}
    layouts = {match[1]: match[2] for match in matches.values() if match is not None}
    return tuple(entry if match is None else match[1] for entry, match in matches.items()), layouts


def gradient_axes(output: torch.Tensor, layout: str) -> tuple[int, ...]:
    """Return the axes of the gradient of an output by descending stride; () if they are those of the output.

    Args:
        output: The output.
        layout: `contiguous`, `channels_last`, `preserve` (that of the output), or axes such as `0,2,1`. "":
            `contiguous` for a channels-last output, because mean squared errors, cross entropies and interpolations
            give it such a gradient, otherwise `preserve`.

    Raises:
        CaptureError: The output has other axes.
    """
    shape, strides = output.shape, output.stride()
    if not layout and has_layout(shape, strides, CHANNELS_LAST):
        layout = CONTIGUOUS
    if layout in ("", PRESERVE):
        return ()
    axes = axes_of(layout, output.dim())
    if len(axes) != output.dim():
        raise CaptureError(f"the gradient of an output of {output.dim()} axes cannot have the memory layout {layout!r}")
    return () if has_layout(shape, strides, layout) else axes


def copied(output: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """Return a copy of an output with the memory layout of its gradient: its tangent is traced with these strides.

    Args:
        output: The output.
        axes: See `gradient_axes`.
    """
    if not axes:
        return output.clone()
    strides = packed_strides(output.shape, axes)
    return torch.empty_strided(output.shape, strides, dtype=output.dtype, device=output.device).copy_(output)


def without_copy(node: Node) -> Node:
    """Return the output below the copy that `copied` made."""
    below = {_CLONE: 0, _COPY: 1}.get(node.target)  # type: ignore[call-overload]
    source = None if below is None else node.args[below]
    return source if isinstance(source, Node) else node
