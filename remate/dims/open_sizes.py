"""Converts `dims=` of `remate.plan` to the family of a model's step over the requested sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from remate_runtime.flat_step import Graph
from remate_runtime.link import link, simulate

from ..errors import DimsError
from ..live_attributes.capturing import captured
from ..profile.costing import MEASURED
from ..profile.workspace import workspace
from .family import Family, family, planned_at, requested_ranges
from .generic import TraceSampleCosts
from .requested_sizes import AUTO, SMALLEST, Asking, read
from .samples import largest_corners
from .sampling import Captures, Sampling

Progress = Callable[[str], None]
_LAYER = "aten.mkldnn_rnn_layer"


class OpenSizes(msgspec.Struct, frozen=True):
    """The requested sizes.

    Attributes:
        dims: As in `remate.plan`, or as read.
        largest: Plan at the largest sizes, not at those of the example.
        captures: Captures of the same example for wider ranges, to reuse and to add to.
    """

    dims: Any = None
    largest: bool = False
    captures: Captures | None = None


FIXED = OpenSizes()


def sampled(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    differentiate: Sequence[str] | None,
    wanted: OpenSizes,
    progress: Progress,
    live: Sequence[str] = (),
) -> Family | None:
    """Return the step at the requested sizes; None if they stay fixed.

    With "auto", a batch that cannot be left open is planned at its size, with a warning. Raises DimsError,
    CaptureError.
    """
    asking = wanted.dims if isinstance(wanted.dims, Asking) else read(wanted.dims, model, args, kwargs)
    if asking is None:
        if isinstance(wanted.dims, str) and wanted.dims == AUTO:
            message = f"the schedule is for one size: no input has a batch of more than {SMALLEST} as its first axis"
            warnings.warn(f"{message}\n  hint: plan with a larger batch", UserWarning, stacklevel=4)
        return None
    captures: Captures = {} if wanted.captures is None else wanted.captures

    def sampling() -> Sampling:
        return Sampling(model, args, kwargs, differentiate, asking, progress, live, captures)

    try:
        if wanted.dims == AUTO:
            _refuse_time_steps(model, args, kwargs, differentiate, live)
        step = _at_largest(sampling, asking) if wanted.largest else family(sampling(), requested_ranges(asking.sizes))
    except DimsError as error:
        if wanted.dims != AUTO:
            raise
        message = f"the schedule is for a batch of {asking.sizes[0].planned} only: {error.message}"
        warnings.warn(message, UserWarning, stacklevel=4)
        return None
    for line in step.said:
        progress(line)
    return step


def _refuse_time_steps(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    differentiate: Sequence[str] | None,
    live: Sequence[str],
) -> None:
    """Raise DimsError if eager runs a recurrent layer as one operation, from which time steps differ by rounding."""
    if not any(isinstance(module, torch.nn.LSTM) for module in model.modules()):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = captured(model, args, kwargs, differentiate, live, digested=False)
    if any(operation.op.startswith(_LAYER) for operation in step.graph.operations):
        raise DimsError(
            "its LSTM is one operation, which has no other sizes",
            'name sizes, dims={"x": {0: "b"}}, to plan it as time steps: they differ by rounding',
        )


def _at_largest(sampling: Callable[[], Sampling], asking: Asking) -> Family:
    """Return the family, planned at the largest sizes: with limits, at those of them that hold the most memory.

    Raises:
        DimsError, CaptureError: As `family` does.
    """
    most = {size.name: _largest(size.max, size.planned, size.multiple) for size in asking.sizes}
    ranges = requested_ranges(asking.sizes, most)
    ends = largest_corners(ranges, asking.limits)
    step = family(sampling(), planned_at(ranges, ends[0]))
    if len(ends) > 1:
        peaks = {
            tuple(each.sizes.items()): simulate(link(each.captured.graph)).peak
            for each in step.trace_samples
            if each.sizes in largest_corners(step.ranges, asking.limits)
        }
        highest = dict(max(peaks, key=peaks.__getitem__))
        if highest != step.trace_samples[0].sizes:
            step = family(sampling(), planned_at(step.ranges, highest))
    return step


def _largest(most: int | None, planned: int, multiple: int) -> int:
    return planned if most is None else most // multiple * multiple


def trace_sample_costs(step: Family, planned: Graph, cost: str, priced: Callable[[Graph], Graph]) -> TraceSampleCosts:
    """Return the workspaces of a family's operations at its sizes.

    An estimate for a device is known at every size. Measurements are taken at the planned size and at both ends. Where
    they agree with the estimate, it shows how they grow.

    Args:
        step: The family.
        planned: Graph of the first trace sample with its costs.
        cost: The cost model.
        priced: Adds costs to a graph.
    """
    graphs = [trace_sample.captured.graph for trace_sample in step.trace_samples]
    if cost != MEASURED:
        return TraceSampleCosts([priced(graph) for graph in graphs])
    kind = planned.device
    estimated = [
        replace(g, operations=tuple(replace(op, workspace=workspace(g, op, kind)) for op in g.operations))
        for g in graphs
    ]
    ends = [{size.name: size.min for size in step.ranges}, *largest_corners(step.ranges, step.limits)]
    measured: list[tuple[int, ...] | None] = [None] * len(graphs)
    for at, trace_sample in enumerate(step.trace_samples):
        if at == 0 or trace_sample.sizes in ends:
            graph = planned if at == 0 else priced(trace_sample.captured.graph)
            measured[at] = tuple(op.workspace for op in graph.operations)
    return TraceSampleCosts(estimated, tuple(measured), priced)
