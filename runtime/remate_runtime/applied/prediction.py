"""Predicts the peak of a step for its engine before it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import nn

from ..engine.compiled_step import MeasuredLane
from ..engine.experimental.cuda_graphs import in_cuda_graphs
from ..engine.registry import engine_of
from ..engine.steps import Steps
from ..errors import BindError
from ..flat_step.graph import LIVE
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..format.substitution import PLANNED
from ..link.fitting import fitted
from ..link.verifier import verify
from ..operator_calls.live import operators
from .dispatch import Dispatch
from .part_view import parts_of


def predicted_peak(model: nn.Module, dims: Mapping[str, int] = PLANNED) -> int:
    """Predict the peak of a training step of an applied model without running anything.

    Args:
        model: A model that `apply` returned.
        dims: Values of named sizes. Omitted sizes are as planned.

    Returns:
        The peak in bytes, beside parameters, buffers, inputs and optimizer state. It is the largest peak of the model's
        schedules. For parts of a model, it is an upper bound for all their calls together.

    Raises:
        BindError: The model has no schedule, or no schedule for this size.
    """
    parts = parts_of(model)
    if parts is not None:
        known = {id(bound.schedule): bound for step in parts.steps.values() for bound in step.steps}
        return sum(bound.peak(dims) for bound in known.values())
    step = getattr(model, "_remate_step", None)
    if not isinstance(step, Dispatch):
        raise BindError("no schedule was applied to this model\n  pass what `remate_runtime.apply` returned")
    return max(bound.peak(dims) for bound in step.steps)


def measured_pages(model: nn.Module, dims: Mapping[str, int] = PLANNED) -> tuple[MeasuredLane, ...]:
    """Return what the latest training step of an applied model has paged, and how long it waited for pages.

    Args:
        model: A model that `apply` returned.
        dims: Values of named sizes. Omitted sizes are as planned.
    """
    step = getattr(model, "_remate_step", None)
    return step.steps[0].paged(dims) if isinstance(step, Dispatch) and len(step.steps) == 1 else ()


def peak_by_engine(schedule: Schedule, engine: str, namespaces: Collection[str] = (), cuda_graphs: bool = False) -> int:
    """Predict the peak of a schedule without its model, on its class of device.

    Args:
        schedule: The schedule.
        engine: Name of the engine.
        namespaces: As in `apply`.
        cuda_graphs: As in `apply`.

    Raises:
        ScheduleError: The file is not valid.
        EngineError: The engine cannot execute it.
    """
    schedule = fitted(schedule, {name: dim.planned for name, dim in schedule.model.dims.items()}).schedule
    verified = verify(schedule)
    graph = verified.linked.graph
    names = [value.name for value in graph.values if value.kind in ("input", "parameter", "buffer", LIVE)]
    live = operators(graph, verified.where, namespaces)
    executes = in_cuda_graphs(engine_of(engine)) if cuda_graphs else engine_of(engine)
    steps = Steps(executes, verified, tuple(output_leaves(schedule.model.outputs)), names, live)
    return steps.peak(torch.device(graph.device))
