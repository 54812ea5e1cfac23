"""`cost="compiled"`: a plan whose budget holds under the engine "compiled", at the least time.

Compiled segments never materialize what they fuse, so they need less memory than the interpreter. How much less is
known only after compilation. So the step is planned for a budget of the interpreter and compiled, and its memory is
predicted. The budget of the interpreter is adjusted until the prediction meets the requested budget. Of all plans
within the budget the fastest is returned. Of plans whose times cannot be distinguished, it is the one with the smallest
peak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from remate_runtime.engine import Artefacts, PredictedMemory, check_available, ns_of, predict_memory
from remate_runtime.flat_step import FlatRecompute
from remate_runtime.format import Compiled, Schedule, Settings
from remate_runtime.support.quantities import size

from ..budget import parse_budget
from ..errors import InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..profile.costing import COMPILED
from ..splits.tiled_step import TiledStep
from ..strategy import Request, StepInstance, effort_named, policy, solve
from ..strategy.pool import CandidatePool
from .progress import Progress, silent
from .splitting import beside_whole, fastest_split
from .writing import schedule_of

ATTEMPTS = {"quick": 2, "normal": 4, "thorough": 8}  # number of plans to compile, by effort
_CLOSE = 0.01  # share of the budget: stop if the prediction is this close
_MORE = 1.1
_NOISE = 0.02  # share of a time: measurements of the same kernel differ by this much


class _Attempt(NamedTuple):
    """A compiled plan. planned: budget of the interpreter, in bytes."""

    planned: int
    schedule: Schedule
    predicted: PredictedMemory


def plan_compiled(
    step: Hierarchy, settings: Settings, *, name: str, note: str = "", progress: Progress | None = None
) -> Schedule:
    """Like `plan_step`. Also raises EngineError, if nothing can be compiled."""
    check_available(step.captured.graph.device)
    say = progress or silent
    tiled = fastest_split(step, settings, COMPILED, progress=say) if settings.split else None
    return _CompiledSearch(step, settings, name, note, say, tiled).best()


class _CompiledSearch:
    def __init__(
        self, step: Hierarchy, settings: Settings, name: str, note: str, say: Progress, tiled: TiledStep | None
    ) -> None:
        self._step, self._settings, self._names, self._say = step, settings, (name, note), say
        self._whole, self._tiled = StepInstance(step.captured.graph, step.parts), tiled
        self._instance = self._whole if tiled is None else StepInstance(tiled.expanded.graph, tiled.blocks)
        self._limit = parse_budget(settings.budget).resolve(self._whole.baseline.peak)
        self._pool, self._artefacts = CandidatePool(), Artefacts(torch.device(step.captured.graph.device))
        self._compiled: dict[tuple[FlatRecompute, ...], _Attempt] = {}

    def best(self) -> Schedule:
        """The fastest plan within the budget, as far as can be measured."""
        self._attempts()
        within = [attempt for attempt in self._compiled.values() if attempt.predicted.peak <= self._limit]
        if not within:
            smallest = min(attempt.predicted.peak for attempt in self._compiled.values())
            baseline = self._whole.baseline.peak
            raise InfeasibleError(self._limit, smallest, self._floor(), self._settings.strategy, baseline=baseline)
        best = _chosen(within, self._artefacts.device)
        compiled = Compiled(self._limit, best.predicted.peak)
        return replace(best.schedule, solve=replace(best.schedule.solve, compiled=compiled))

    def _floor(self) -> int:
        """Lower limit of the compiled peak: the gradients, if retained.

        The floor of the interpreter does not apply, because it counts values that compiled segments never materialize.
        """
        graph = self._step.captured.graph
        owners = {graph.root[value] for _, value in graph.gradients} if graph.delivered == "retained" else set[int]()
        return sum(graph.nbytes(owner) for owner in owners if graph.values[owner].kind == "op")

    def _attempts(self) -> None:
        """Search for the largest budget of the interpreter whose compiled plan is within the budget."""
        most = max(self._limit, self._whole.baseline.peak)
        small, large, planned = 0, most, self._limit
        for _ in range(ATTEMPTS[self._settings.effort]):
            try:
                predicted = self._attempt(planned)
            except InfeasibleError as error:
                if self._compiled or planned >= error.smallest:
                    raise
                planned = error.smallest
                predicted = self._attempt(planned)
            if predicted.whole > self._limit:
                large = planned
            else:
                small = planned
            if planned >= most if large == most else large - small < _CLOSE * self._limit:
                break
            planned = self._between(planned, predicted, small, large, most)

    def _between(self, planned: int, predicted: PredictedMemory, small: int, large: int, most: int) -> int:
        """The next budget of the interpreter to try."""
        if not small:  # the first plan already fits; a larger budget may be faster
            return min(most, round(planned * _MORE))
        straight = round(small * self._limit / max(1, predicted.whole)) if small == planned else large
        return straight if small < straight < large or straight >= most == large else (small + large) // 2

    def _attempt(self, planned: int) -> PredictedMemory:
        settings = self._settings
        request = Request(planned, settings.gap, effort_named(settings.effort))
        limits: dict[str, Any] = {"time_limit": settings.time_limit, "pool": self._pool, "progress": self._say}
        solution = solve(self._instance, request, policy(settings.strategy), **limits)
        if solution.recomputes not in self._compiled:
            about: dict[str, Any] = {"settings": settings, "name": self._names[0], "note": self._names[1]}
            written = beside_whole(solution, self._whole) if self._tiled is not None else solution
            schedule = schedule_of(self._step, written, planned, COMPILED, tiled=self._tiled, **about)
            self._say(f"compiling a plan with peak {size(solution.peak)} in the interpreter")
            predicted = predict_memory(schedule, self._limit, self._artefacts, schedule.namespaces)
            self._say(f"its compiled peak is {size(predicted.peak)}, of a budget of {size(self._limit)}")
            self._compiled[solution.recomputes] = _Attempt(planned, schedule, predicted)
        return self._compiled[solution.recomputes].predicted


def _chosen(kept: Sequence[_Attempt], device: torch.device) -> _Attempt:
    """The plan with the smallest peak of those that are as fast as the fastest, within noise.

    Only kernels that differ between two plans count as uncertain. Kernels that both share take the same time in both,
    so noise does not hide a short extra recomputation.
    """
    ns = ns_of((function for attempt in kept for function in attempt.predicted.functions), device)
    parts = [Counter(attempt.predicted.parts(ns)) for attempt in kept]
    fastest = min(parts, key=_sum)
    alike = [
        attempt
        for attempt, part in zip(kept, parts, strict=True)
        if _sum(part) - _sum(fastest) <= _NOISE * _sum(part - fastest)
    ]
    return min(alike, key=lambda attempt: (attempt.predicted.peak, attempt.schedule.solve.time))


def _sum(parts: Counter[int]) -> int:
    return sum(ns * count for ns, count in parts.items())
