"""What a step will hold, by the engine that executes it, before it runs."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from ..engine.registry import engine_of
from ..engine.steps import Steps
from ..errors import BindError
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..kernels.live import operators
from ..link.fitting import fitted
from ..link.verifier import verify
from .dispatch import Dispatch


def predicted_peak(model: nn.Module) -> int:
    """Bytes that a training step of `model`, which `apply` returned, will hold at its worst moment beyond parameters, buffers,
    inputs and optimizer state; the largest of its schedules, at the sizes that they were planned at. Nothing runs.

    Raises BindError for another model.
    """
    step = getattr(model, "_remate_step", None)
    if not isinstance(step, Dispatch):
        raise BindError("no schedule was applied to this model\n  give what `remate_runtime.apply` returned")
    return max(one.peak for one in step.steps)


def peak_by_engine(schedule: Schedule, engine: str, namespaces: Collection[str] = ()) -> int:
    """The same of a schedule without its model, on its class of device. engine: by name. namespaces: as `apply` takes them.

    Raises ScheduleError, EngineError.
    """
    schedule, _ = fitted(schedule, {name: dim.planned for name, dim in schedule.model.dims.items()})
    verified = verify(schedule)
    graph = verified.linked.graph
    names = [value.name for value in graph.values if value.kind in ("input", "parameter", "buffer")]
    live = operators(graph, verified.where, namespaces)
    steps = Steps(engine_of(engine), verified, tuple(output_leaves(schedule.model.outputs)), names, live)
    return steps.peak(torch.device(graph.device))
