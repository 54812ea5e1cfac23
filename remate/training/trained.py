"""`remate train`: gives each module that a script trains a schedule, after first steps with its own forward."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from remate_runtime.errors import RemateError
from remate_runtime.format import Schedule

from .auto import auto
from .state import Auto, Outcome, state_of
from .steps_taken import Beside, StepsTaken
from .watch import Backward, Listener

_ITERATIONS = 2  # with the model's own forward: one to measure its peak, one for its time
_OPTIMIZER = "Optimizer.step#"  # start of the name of torch's range around a step of an optimizer, with its closure
_BACKWARDS = 4  # limit for scripts whose optimizer steps seldom (LBFGS) or never


class TrainingReport(msgspec.Struct, frozen=True):
    """The result for a module.

    Attributes:
        refused: The reason if it has no schedules; otherwise "".
        steps: Number of scheduled steps.
        aside: Number of other steps since planning: a call of the model, or of a planned part, fitted no schedule.
    """

    name: str
    outcome: Outcome
    refused: str
    steps: int
    beside: Beside
    file: Path | None
    aside: int = 0


class _Seen:
    """A module that may be trained; the script may drop it at any time."""

    def __init__(self, module: nn.Module, name: str, file: Path | None) -> None:
        self.kept, self.kind, self.name, self.file = weakref.ref(module), type(module).__name__, name, file
        self.parameters = {id(p) for p in module.parameters() if p.requires_grad}
        self.device = next(p.device for p in module.parameters())
        self.steps = StepsTaken()
        self.refused = ""
        self.backwards = self.iterations = 0  # with its own forward; iterations are those that an optimizer step ended
        self.beside_scalars = False  # whether the script uses gradients of outputs beside the scalar ones
        self.since_step = False  # whether a backward ran since the last optimizer step
        self.taken = False
        self.outcome = Outcome()
        self.began: Outcome | None = None  # the outcome when the current step began
        self.calls_aside = 0  # when the current step began
        self.scheduled = self.aside = 0  # steps

    @property
    def state(self) -> Auto | None:
        module = self.kept()
        return None if module is None else state_of(module)


class Trained(Listener):
    """Gives trained modules schedules.

    Args:
        options: Options of `auto`.
        file: Path of the first module's schedule. Other modules add the names of their classes.
        skip: Names of classes without schedules.
        at_once: Whether to plan at the second training call, without measuring eager steps. If a file exists, it is
            always used at once.
    """

    def __init__(
        self, options: Mapping[str, object], file: Path | None, skip: Collection[str] = (), *, at_once: bool = False
    ) -> None:
        self._options, self._file, self._skip, self._at_once = options, file, skip, at_once
        self._open: list[str] = []  # ranges of torch's profiler during which no other measurement of memory may begin
        self._all: list[_Seen] = []
        self._alive: dict[int, _Seen] = {}

    @property
    def reports(self) -> list[TrainingReport]:
        return [_report(seen) for seen in self._all if seen.backwards or seen.taken or seen.refused]

    def called(self, module: nn.Module) -> None:
        seen = self._of(module)
        if seen is None:
            seen = self._alive[id(module)] = self._new(module)
            self._all.append(seen)
        if seen.refused or seen.steps.under_way or seen.outcome.refused:
            return
        state = seen.state
        if state is not None and state.outcome.needless:
            seen.began = state.outcome  # the call may plan again
            return
        busy = bool(self._open) or any(other.steps.measures_memory for other in self._all)
        memory = seen.steps.wants_memory(state is not None) and not busy
        seen.began = None if state is None else state.outcome
        seen.calls_aside = 0 if state is None else state.calls_aside
        # The profiler is stopped by the thread that started it, and only the main thread is sure to come back.
        memory = memory and threading.current_thread() is threading.main_thread()
        gradients = sum(_nbytes(p.grad) for p in module.parameters() if p.grad is not None)
        trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
        seen.steps.begin(seen.device, memory, gradients, trained)

    def returned(self, module: nn.Module, inputs: tuple[object, ...]) -> None:
        if (seen := self._of(module)) is not None:
            seen.steps.of(inputs)

    def aliases(self, module: nn.Module) -> bool:
        seen = self._of(module)
        return seen is not None and not seen.taken and not seen.refused

    def arrives(self, module: nn.Module) -> None:
        if (seen := self._of(module)) is not None and seen.steps.under_way:
            seen.steps.accumulates = any(parameter.grad is not None for parameter in module.parameters())

    def gradient(self, module: nn.Module, backward: Backward) -> None:
        seen = self._of(module)
        if seen is None or seen.refused:
            return
        state = seen.state
        if state is not None and state.outcome.needless and not seen.steps.under_way:
            return
        if state is not None:
            seen.outcome = state.outcome
            aside = seen.calls_aside if state.outcome is seen.began else 0  # a new schedule counts from 0
            by_schedule = state.runs_schedules and state.calls_aside == aside
            seen.scheduled += by_schedule
            seen.aside += state.runs_schedules and not by_schedule
            if state.outcome is not seen.began:  # planning ran within this step, and within concurrent steps of others
                for other in self._alive.values():
                    other.steps.drop()
            if not by_schedule:
                seen.steps.drop()
            seen.steps.end(scheduled=True)
            return
        seen.steps.end(scheduled=False)
        if backward.double or backward.times > 1:
            how = "is differentiated again (create_graph=True)" if backward.double else "has two backwards"
            self._leave(seen, f"a call of it {how}, and a scheduled call has only one backward")
            return
        seen.backwards, seen.since_step = seen.backwards + 1, True
        seen.beside_scalars |= backward.beside_scalars
        if seen.backwards >= _BACKWARDS:
            self._take(seen, module)

    def between(self) -> None:
        for seen in self._all:
            gone = seen.kept() is None  # no backward will come
            self._open += seen.steps.close() if gone else seen.steps.settle()

    def left(self) -> None:
        for seen in self._all:
            seen.steps.close()

    def stepped(self, parameters: set[int]) -> None:
        if all(name.startswith(_OPTIMIZER) for name in self._open):
            self._open = []  # it ends before anything else begins
        for seen in list(self._alive.values()):
            module = seen.kept()
            if seen.since_step and not seen.refused and module is not None and seen.parameters & parameters:
                seen.since_step, seen.iterations = False, seen.iterations + 1
                if seen.iterations >= _ITERATIONS:
                    self._take(seen, module)

    def _of(self, module: nn.Module) -> _Seen | None:
        seen = self._alive.get(id(module))
        return seen if seen is not None and seen.kept() is module else None

    def _new(self, module: nn.Module) -> _Seen:
        """Return the state of a new module.

        If the script dropped a similar module (the last fold of a cross-validation), the new one reuses its name, file
        and schedules.
        """
        kind = type(module).__name__
        gone = next((seen for seen in self._all if seen.kind == kind and seen.kept() is None and seen.taken), None)
        if gone is not None:
            self._all.remove(gone)
            seen = _Seen(module, gone.name, gone.file)
            seen.steps, seen.scheduled, seen.aside = gone.steps, gone.scheduled, gone.aside
            seen.steps.drop()
        else:
            names = [seen.name for seen in self._all]
            name = next(n for n in (kind, *(f"{kind}-{i}" for i in range(2, 1 << 20))) if n not in names)
            file = self._file
            if file is not None and names:
                file = file.with_name(f"{file.stem}.{name}{file.suffix}")
            seen = _Seen(module, name, file)
        if kind in self._skip:
            seen.refused = "it is skipped"
        elif gone is not None or self._at_once or (seen.file is not None and seen.file.exists()):
            self._take(seen, module, () if gone is None else gone.outcome.schedules)
        return seen

    def _take(self, seen: _Seen, module: nn.Module, known: Sequence[Schedule] = ()) -> None:
        if seen.taken:
            return
        seen.steps.drop_running()
        options: dict[str, Any] = {"name": seen.name, "on_refused": "original", **self._options}
        if seen.beside_scalars:
            options["differentiate"] = ["*"]
        try:
            auto(module, file=seen.file, **options)
        except (RemateError, OSError) as error:
            self._leave(seen, str(error))
            return
        seen.taken = True
        if (state := seen.state) is not None:
            state.known = known

    def _leave(self, seen: _Seen, why: str) -> None:
        seen.steps.drop()
        seen.refused = why


def _nbytes(gradient: torch.Tensor) -> int:
    if gradient.layout is torch.strided:
        return gradient.nbytes
    return gradient._indices().nbytes + gradient._values().nbytes if gradient.is_sparse else 0


def _report(seen: _Seen) -> TrainingReport:
    state = seen.state
    outcome = seen.outcome if state is None else state.outcome
    refused = seen.refused or outcome.refused
    if not seen.taken and not refused:
        refused = f"the script ended within the first {_ITERATIONS} steps, which run the model's own forward"
    if seen.taken and not refused and not outcome.schedules:
        refused = "the script made no training call after the first steps"
    return TrainingReport(seen.name, outcome, refused, seen.scheduled, seen.steps.beside(), seen.file, seen.aside)
