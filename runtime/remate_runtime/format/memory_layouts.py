"""Memory layouts: the order of a tensor's axes by descending stride, and its name in `remate.plan(differentiate=)`."""

from __future__ import annotations

from collections.abc import Sequence

PRESERVE = "preserve"  # the layout of the output
CONTIGUOUS = "contiguous"
CHANNELS_LAST = "channels_last"
LAYOUT = rf"{CONTIGUOUS}|{CHANNELS_LAST}|{PRESERVE}|[0-9]+(?:,[0-9]+)*"  # regular expression of a layout
_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def axes_by_stride(shape: Sequence[int], strides: Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes of more than one element by descending stride.

    Args:
        shape: Sizes of the axes.
        strides: In elements; None for a contiguous tensor.
    """
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    return tuple(axes if strides is None else sorted(axes, key=lambda axis: -strides[axis]))


def axes_of(layout: str, dim: int) -> tuple[int, ...]:
    """Return the axes of a layout by descending stride; () if it is not one of tensors with `dim` axes."""
    if layout == CONTIGUOUS:
        return tuple(range(dim))
    axes = _CHANNELS_LAST.get(dim, ()) if layout == CHANNELS_LAST else tuple(map(int, layout.split(",")))
    return axes if sorted(axes) == [*range(dim)] else ()


def has_layout(shape: Sequence[int], strides: Sequence[int] | None, layout: str) -> bool:
    """Return whether the axes of a tensor have the order of a layout. It may have gaps."""
    axes = axes_of(layout, len(shape))
    return len(axes) == len(shape) and axes_by_stride(shape, strides) == tuple(axis for axis in axes if shape[axis] > 1)


def layout_text(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Return the name of a tensor's layout, or its axes by descending stride."""
    for layout in (CONTIGUOUS, CHANNELS_LAST):
        if has_layout(shape, strides, layout):
            return layout
    return ",".join(map(str, sorted(range(len(shape)), key=lambda axis: (-strides[axis], shape[axis]))))


def packed_strides(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return strides without gaps or overlaps.

    Args:
        shape: Sizes of the axes.
        axes: All axes, by descending stride.
    """
    strides, size = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis] = size
        size *= max(1, shape[axis])
    return tuple(strides)
