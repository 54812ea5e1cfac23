"""One schedule bound to a model, and made ready for the devices that it is called on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..bind.model_binding import ModelBinding, check_autocast
from ..bind.outputs import Detached, output_builder
from ..engine.registry import engine_of
from ..engine.step_function import run_step
from ..engine.steps import Steps
from ..errors import BindError, ScheduleError
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..kernels.live import operators
from ..link.verifier import verify
from ..live.trust import Stale, trusted
from .recorded_call import RecordedCall


class ScheduledForward:
    """keep_all: bytes that the step holds at its worst moment without reruns, as the file states."""

    def __init__(
        self, model: nn.Module, schedule: Schedule, namespaces: tuple[str, ...], stale: Stale, engine: str
    ) -> None:
        self.schedule = schedule
        executes = engine_of(engine)
        _permit(schedule, namespaces)
        verified = verify(schedule)
        live = operators(verified.linked.graph, verified.where, namespaces)
        self._bound = ModelBinding(model, schedule.model)
        self._guard = trusted(model, schedule, stale)
        self._inputs = RecordedCall(schedule.model.inputs, model)
        self._detached = Detached(schedule.model.outputs)
        self._build = output_builder(schedule.model.outputs, model)
        names = [*self._inputs.names, *self._bound.names]
        self._steps = Steps(executes, verified, tuple(output_leaves(schedule.model.outputs)), names, live)
        self._steps.planned(self.device)

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self._bound.device()

    def check(self) -> None:
        """Raise BindError or StaleModelError if the model is not what it was when the schedule was applied."""
        self._bound.check_modules()
        self._guard.check()

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call that the schedule is for. Raises BindError for any other call."""
        device = self.device
        check_autocast(self.schedule.model.autocast, device)
        return self._inputs.flatten(args, kwargs, device)

    def takes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the schedule is for this call."""
        try:
            self.inputs(tuple(args), dict(kwargs))
        except BindError:
            return False
        return True

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The step's forward on what `inputs` gave; the module's outputs."""
        device = self.device
        sources = [*inputs, *self._bound.tensors(device)]
        values = run_step(self._steps.wanted(device, sources), sources)
        return self._build(self._detached.guard(values, sources))


def _permit(schedule: Schedule, namespaces: tuple[str, ...]) -> None:
    """Raise ScheduleError R050 if the schedule needs a permission that the caller did not give."""
    missing = [name for name in schedule.namespaces if name not in namespaces]
    if missing:
        listed = ", ".join(map(repr, missing))
        wanted = tuple(dict.fromkeys([*namespaces, *missing]))
        raise ScheduleError(
            "R050",
            f"the schedule names {listed} in `namespaces`, which was not permitted",
            f"/namespaces/{schedule.namespaces.index(missing[0])}",
            f"if you trust the file and the libraries: apply(model, schedule, namespaces={wanted!r}), "
            f"remate run --allow {' '.join(wanted)}",
        )
