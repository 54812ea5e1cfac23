"""Calls of other sizes than a schedule's: how to plan them, and the peak of the step at these sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace

from ..errors import RemateError
from ..flat_step.expansion import expand
from ..format.expression_text import parse_size
from ..format.schedule import Dimension, Schedule
from ..format.size_limits import largest_sizes, over_limit
from ..format.sized_type import open_axes
from ..format.substitution import at_size
from ..link.linker import link
from ..link.simulator import simulate
from ..operator_calls.overloads import TORCH_DTYPES

SMALLEST = 2  # least size of a range, because PyTorch's step at size 1 differs


class SizeRequest(NamedTuple):
    """The arguments of `remate.plan` for a call that differs from a schedule only in sizes.

    Attributes:
        dims: Sizes by argument and axis, with ranges that contain the call and the sizes of the file, and limits.
        in_bytes: Whether the file's budget in bytes is large enough for the call.
        alone: Whether a size of the call is 1. Such a call has its own step, to be applied beside the schedule.
    """

    dims: dict[str, dict[int, str] | int]
    in_bytes: bool
    alone: bool


class _Axis(NamedTuple):
    """An input axis that may vary.

    Attributes:
        argument: Name of the argument.
        at: Index of the axis.
        name: Name of the size.
        planned: Its length in the file.
        called: Its length in the call.
    """

    argument: str
    at: int
    name: str
    planned: int
    called: int


def size_request(schedule: Schedule, args: Sequence[object], kwargs: Mapping[str, object]) -> SizeRequest | None:
    """Return how to plan a call together with the sizes of a schedule.

    Args:
        schedule: The file.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Returns:
        The request; None if the sizes do not differ, or if other things differ too.
    """
    axes = _axes(schedule, args, kwargs)
    if not axes:
        return None
    ranges: dict[str, tuple[int, int, int]] = {}
    for axis in axes:
        dim = schedule.model.dims.get(axis.name)
        low, high = (dim.min, dim.max) if dim else (axis.planned, axis.planned)
        if dim is None and axis.at == 0:
            low = min(low, SMALLEST)  # a batch axis takes any number up to the largest
        multiple = dim.multiple if dim else 1
        if axis.called < 1 or (axis.called % multiple and axis.called >= SMALLEST):
            return None
        widened = min(low, axis.called), max(high, axis.called), multiple
        if ranges.setdefault(axis.name, widened) != widened:
            return None
    dims: dict[str, dict[int, str]] = {}
    for axis in axes:
        low, high, multiple = ranges[axis.name]
        if low >= SMALLEST:
            steps = f"/{multiple}" if multiple > 1 else ""
            dims.setdefault(axis.argument, {})[axis.at] = f"{axis.name}={low}..{high}{steps}"
    called = {axis.name: axis.called for axis in axes}
    named = {name: end for name, end in ranges.items() if end[0] >= SMALLEST}
    limits = {
        text: max(most, limited.at(called))
        for text, most in schedule.model.limits.items()
        if (limited := parse_size(text)).dims <= named.keys()
    }
    wider = {name: Dimension(min=low, max=high, planned=high) for name, (low, high, _) in named.items()}
    if schedule.model.dims:
        ends = [{**called, **end} for end in largest_sizes(wider, limits)]
        peaks = [_peak_at(schedule, end) for end in ends if _is_beyond(schedule, end)]
        fits = all(peak is not None and peak <= schedule.solve.budget for peak in peaks)
    else:
        fits = all(axis.called <= axis.planned for axis in axes)
    return SizeRequest({**dims, **limits}, fits, any(axis.called < SMALLEST for axis in axes))


def _is_beyond(schedule: Schedule, size: Mapping[str, int]) -> bool:
    """Return whether a size is larger than those of a schedule."""
    dims, limits = schedule.model.dims, schedule.model.limits
    return any(size[name] > dim.max for name, dim in dims.items()) or over_limit(limits, size) != ""


def peak_there(
    schedule: Schedule, args: Sequence[object], kwargs: Mapping[str, object], recomputing: bool = True
) -> int | None:
    """Return the peak of the step at the sizes of a call, within or outside the range, from the file's expressions.

    Args:
        schedule: The file.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        recomputing: Whether to use the plan; otherwise nothing is recomputed.

    Returns:
        The peak in bytes; None if the file names no sizes, or if its expressions are not valid there.
    """
    return _peak_at(schedule, {axis.name: axis.called for axis in _axes(schedule, args, kwargs)}, recomputing)


def _peak_at(schedule: Schedule, size: Mapping[str, int], recomputing: bool = True) -> int | None:
    """Return the peak at a size, as `peak_there` does."""
    if not size or size.keys() != schedule.model.dims.keys():
        return None
    dims = {
        name: Dimension(min=min(dim.min, size[name]), max=max(dim.max, size[name]), planned=dim.planned)
        for name, dim in schedule.model.dims.items()
    }
    try:
        wider = replace(schedule, model=replace(schedule.model, dims=dims, limits={}))
        flat = expand(at_size(wider, size))
        linked = link(flat.graph, flat.recomputes, flat.pages) if recomputing else link(flat.graph)
        return simulate(linked).peak
    except RemateError:
        return None


def _axes(schedule: Schedule, args: Sequence[object], kwargs: Mapping[str, object]) -> list[_Axis]:
    """Return the named axes. If the file is for one size, return the axes in which the call differs.

    The list is empty if the call passes other arguments, or tensors that differ in other axes.
    """
    inputs, dims = schedule.model.inputs, schedule.model.dims
    positional, named = inputs.get("args", ()), inputs.get("kwargs", {})
    if len(positional) != len(args) or named.keys() != kwargs.keys():
        return []
    axes: list[_Axis] = []
    names: dict[int, str] = {}  # by length, for a file without named sizes
    for tree, given in [*zip(positional, args, strict=True), *((named[key], kwargs[key]) for key in kwargs)]:
        text = tree.get("tensor") if isinstance(tree, dict) else None
        if text is None or not isinstance(given, torch.Tensor):
            if text is not None or isinstance(given, torch.Tensor):
                return []
            continue
        opened = open_axes(text, dims) if dims else {}
        sizes = [size.strip() for size in text.partition("[")[2].partition("]")[0].split(",") if size.strip()]
        dtype = TORCH_DTYPES.get(text.partition("[")[0])
        if given.dtype is not dtype or given.dim() != len(sizes):
            return []
        for at, (size, called) in enumerate(zip(sizes, given.shape, strict=True)):
            if at in opened:
                axes.append(_Axis(tree["name"], at, opened[at], dims[opened[at]].planned, called))
            elif size.isdecimal() and int(size) != called:
                if dims:
                    return []
                fresh = "b" if at == 0 else f"t{len(names)}" if "t" in names.values() else "t"
                axes.append(_Axis(tree["name"], at, names.setdefault(int(size), fresh), int(size), called))
    return axes
