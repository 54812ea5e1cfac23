"""What a step will hold, by the engine that executes it, before it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import nn

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
    """Predict the peak of a training step of an applied model. Nothing runs.

    Args:
        model: A model that `apply` returned.
        dims: Values of named sizes. Sizes that are left out are as planned.

    Returns:
        Bytes that the step holds at its worst moment, beyond parameters, buffers, inputs and optimizer state. The
        largest of the model's schedules; for parts of a model, an upper bound of what all their calls hold together.

    Raises:
        BindError: No schedule was applied to the model, or none is for this size.
    """
    parts = parts_of(model)
    if parts is not None:
        known = {id(one.schedule): one for step in parts.steps.values() for one in step.steps}
        return sum(one.peak(dims) for one in known.values())
    step = getattr(model, "_remate_step", None)
    if not isinstance(step, Dispatch):
        raise BindError("no schedule was applied to this model\n  give what `remate_runtime.apply` returned")
    return max(one.peak(dims) for one in step.steps)


def peak_by_engine(schedule: Schedule, engine: str, namespaces: Collection[str] = (), cuda_graphs: bool = False) -> int:
    """The same of a schedule without its model, on its class of device. engine: by name. namespaces, cuda_graphs: as
    `apply` takes them.

    Raises ScheduleError, EngineError.
    """
    schedule = fitted(schedule, {name: dim.planned for name, dim in schedule.model.dims.items()}).schedule
    verified = verify(schedule)
    graph = verified.linked.graph
    names = [value.name for value in graph.values if value.kind in ("input", "parameter", "buffer", LIVE)]
    live = operators(graph, verified.where, namespaces)
    executes = in_cuda_graphs(engine_of(engine)) if cuda_graphs else engine_of(engine)
    steps = Steps(executes, verified, tuple(output_leaves(schedule.model.outputs)), names, live)
    return steps.peak(torch.device(graph.device))
