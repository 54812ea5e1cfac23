"""Calls of other sizes than a schedule's: how to plan them, and the peak of the step at these sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace

from ..errors import RemateError
from ..flat_step.expansion import expand
from ..format.expression_text import parse_size
from ..format.expressions import spelled
from ..format.json_values import is_object
from ..format.schedule import Dimension, Schedule
from ..format.size_limits import largest_sizes, over_limit
from ..format.sized_type import open_axes
from ..format.substitution import at_size
from ..link.linker import link
from ..link.simulator import simulate
from ..operator_calls.live import operators
from ..operator_calls.overloads import TORCH_DTYPES

SMALLEST = 2  # least size of a range, because PyTorch's step at size 1 differs


class SizeRequest(NamedTuple):
    """The arguments of `remate.plan` for a call that differs from a schedule only in sizes.

    Attributes:
        dims: Sizes by argument and axis, with ranges that contain the call and the sizes of the file, and limits.
        shapes: Lengths of the axes of an example, by argument: the planned ones, or those of the call if larger. Its
            peak is no less than that of the file.
        in_bytes: Whether the file's budget in bytes is large enough for the call.
        alone: The size of the call that has its own step, to be applied beside the schedule: `size 1`, `t=60`; or "".
    """

    dims: dict[str, dict[int, str] | int]
    shapes: dict[str, dict[int, int]]
    in_bytes: bool
    alone: str


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
    called = {axis.name: axis.called for axis in axes}
    if not axes or min(called.values()) < 1 or any(axis.called != called[axis.name] for axis in axes):
        return None
    ranges = {name: end for axis in axes for name, end in [(axis.name, _widened(schedule, axis, called))] if end}
    dims: dict[str, dict[int, str] | int] = {}
    for argument in dict.fromkeys(axis.argument for axis in axes if axis.name in ranges):
        own = (axis for axis in axes if axis.argument == argument and axis.name in ranges)
        dims[argument] = {axis.at: range_of_size(axis.name, ranges[axis.name]) for axis in own}
    limits = {
        text: max(most, limited.at(called))
        for text, most in schedule.model.limits.items()
        if (limited := parse_size(text)).dims <= ranges.keys()
    }
    if schedule.model.dims:
        ends = [{**called, **end} for end in largest_sizes(ranges, limits)]
        peaks = [_peak_at(schedule, end) for end in ends]
        fits = all(peak is not None and peak <= schedule.solve.budget for peak in peaks)
    else:
        fits = all(axis.called <= axis.planned for axis in axes)
    apart = [name for name in called if name not in ranges]
    alone = "size 1" if any(called[name] < SMALLEST for name in apart) else spelled({n: called[n] for n in apart})
    larger = {axis.name: axis.called if alone else max(axis.planned, axis.called) for axis in axes}
    example = called if over_limit(limits, {**called, **larger}) else larger
    shapes = {
        argument: {axis.at: example[axis.name] for axis in axes if axis.argument == argument} for argument in dims
    }
    return SizeRequest({**dims, **limits}, shapes, fits, alone)


def _widened(schedule: Schedule, axis: _Axis, called: Mapping[str, int]) -> Dimension | None:
    """Return the range of a size that contains that of the file and of the call; None if the call has its own step.

    The steps of a range become smaller if the file's step exists at the size of the call.
    """
    dim = schedule.model.dims.get(axis.name)
    if axis.called < SMALLEST:
        return None
    if dim is None:
        low = min(axis.planned, SMALLEST) if axis.at == 0 else axis.planned  # a batch axis takes any number
        low, high, multiple = min(low, axis.called), max(axis.planned, axis.called), 1
    else:
        low, high, multiple = min(dim.min, axis.called), max(dim.max, axis.called), math.gcd(dim.multiple, axis.called)
        others = {name: max(number, SMALLEST) for name, number in called.items()}
        if multiple != dim.multiple and not _exists_at(schedule, others):
            return None
    return Dimension(min=low, max=high, multiple=multiple, planned=high) if low >= SMALLEST else None


def range_of_size(name: str, dim: Dimension) -> str:
    """Format a range as `remate.plan` takes it: `t=16..1024/8`."""
    steps = f"/{dim.multiple}" if dim.multiple > 1 else ""
    return f"{name}={dim.min}..{dim.max}{steps}"


def peak_at_sizes(
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
    """Return the peak at a size, as `peak_at_sizes` does."""
    if not size or size.keys() != schedule.model.dims.keys():
        return None
    try:
        flat = expand(at_size(_wider(schedule, size), size))
        linked = link(flat.graph, flat.recomputes, flat.pages) if recomputing else link(flat.graph)
        return simulate(linked).peak
    except RemateError:
        return None


def _exists_at(schedule: Schedule, size: Mapping[str, int]) -> bool:
    """Return whether the operations of a schedule fit together at a size outside its range."""
    try:
        expanded = expand(at_size(_wider(schedule, size), size))
        operators(expanded.graph, expanded.where, schedule.namespaces)
    except RemateError:
        return False
    return True


def _wider(schedule: Schedule, size: Mapping[str, int]) -> Schedule:
    """Return a schedule whose range contains a size."""
    dims = {
        name: Dimension(min=min(dim.min, size[name]), max=max(dim.max, size[name]), planned=dim.planned)
        for name, dim in schedule.model.dims.items()
    }
    return replace(schedule, model=replace(schedule.model, dims=dims, limits={}))


def _axes(schedule: Schedule, args: Sequence[object], kwargs: Mapping[str, object]) -> list[_Axis]:
    """Return the named axes, and those without a name in which the call differs.

    The list is empty if the call passes other arguments.
    """
    inputs, dims = schedule.model.inputs, schedule.model.dims
    positional, named = inputs.get("args", ()), inputs.get("kwargs", {})
    if len(positional) != len(args) or named.keys() != kwargs.keys():
        return []
    axes: list[_Axis] = []
    names: dict[int, str] = {}  # by length, of sizes without a name in the file
    for tree, given in [*zip(positional, args, strict=True), *((named[key], kwargs[key]) for key in kwargs)]:
        text: str | None = tree.get("tensor") if is_object(tree) else None
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
                name = names.setdefault(int(size), _fresh("b" if at == 0 else "t", {*dims, *names.values()}))
                axes.append(_Axis(tree["name"], at, name, int(size), called))
    return axes


def _fresh(name: str, known: Collection[str]) -> str:
    """Return a name for a size that is not known yet: t, t1, t2, …"""
    return next(each for n in itertools.count() if (each := f"{name}{n or ''}") not in known)
