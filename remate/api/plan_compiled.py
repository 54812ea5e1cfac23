"""`cost="compiled"`: a plan whose budget holds where the engine "compiled" executes it, and no time is given away.

Compiled segments never make what they fuse, so they hold less than the interpreter, and how much less is known only
when they are compiled. So the step is planned for a budget of the interpreter, compiled, and its memory predicted; the
budget of the interpreter is changed until the prediction meets the true one. Of all that keep it, the fastest is taken;
of those that measurements cannot tell from it, the one that holds least.
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
from ..strategy import Request, StepInstance, effort_named, policy, solve
from ..strategy.pool import CandidatePool
from .plan import Progress, schedule_of

ATTEMPTS = {"quick": 2, "normal": 4, "thorough": 8}  # plans that are compiled, by effort
_CLOSE = 0.01  # of the budget: so near, and no further plan is compiled
_MORE = 1.1
_NOISE = 0.02  # of a time: by so much two measurements of the same may differ


class _Attempt(NamedTuple):
    """planned: bytes that the interpreter may hold."""

    planned: int
    schedule: Schedule
    predicted: PredictedMemory


def plan_compiled(
    step: Hierarchy, settings: Settings, *, name: str, note: str = "", progress: Progress | None = None
) -> Schedule:
    """As `plan_step`. Raises EngineError, too: where nothing can be compiled."""
    check_available(step.captured.graph.device)
    return _CompiledSearch(step, settings, name, note, progress or (lambda text: None)).best()


class _CompiledSearch:
    def __init__(self, step: Hierarchy, settings: Settings, name: str, note: str, say: Progress) -> None:
        self._step, self._settings, self._names, self._say = step, settings, (name, note), say
        self._instance = StepInstance(step.captured.graph, step.parts)
        self._limit = parse_budget(settings.budget).resolve(self._instance.baseline.peak)
        self._pool, self._artefacts = CandidatePool(), Artefacts(torch.device(step.captured.graph.device))
        self._found: dict[tuple[FlatRecompute, ...], _Attempt] = {}

    def best(self) -> Schedule:
        """The fastest that keeps the budget, as far as can be measured."""
        self._attempts()
        kept = [one for one in self._found.values() if one.predicted.peak <= self._limit]
        if not kept:
            smallest = min(one.predicted.peak for one in self._found.values())
            baseline = self._instance.baseline.peak
            raise InfeasibleError(self._limit, smallest, self._floor(), self._settings.strategy, baseline=baseline)
        best = _chosen(kept, self._artefacts.device)
        compiled = Compiled(self._limit, best.predicted.peak)
        return replace(best.schedule, solve=replace(best.schedule.solve, compiled=compiled))

    def _floor(self) -> int:
        """However it is compiled, the step ends with its gradients, where those are held. (What the interpreter proves
        counts what compiled segments never make.)"""
        graph = self._step.captured.graph
        owners = {graph.root[value] for _, value in graph.gradients} if graph.delivered == "retained" else set[int]()
        return sum(graph.nbytes(owner) for owner in owners if graph.values[owner].kind == "op")

    def _attempts(self) -> None:
        """Plan for what promises to hold as much as may be; between a budget that is too small and one that is too
        large."""
        most = max(self._limit, self._instance.baseline.peak)
        small, large, planned = 0, most, self._limit
        for _ in range(ATTEMPTS[self._settings.effort]):
            try:
                predicted = self._attempt(planned)
            except InfeasibleError as error:
                if self._found or planned >= error.smallest:
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
        if not small:  # even the first is split; somewhat more may be faster still
            return min(most, round(planned * _MORE))
        straight = round(small * self._limit / max(1, predicted.whole)) if small == planned else large
        return straight if small < straight < large or straight >= most == large else (small + large) // 2

    def _attempt(self, planned: int) -> PredictedMemory:
        settings = self._settings
        request = Request(planned, settings.gap, effort_named(settings.effort))
        limits: dict[str, Any] = {"time_limit": settings.time_limit, "pool": self._pool, "progress": self._say}
        solution = solve(self._instance, request, policy(settings.strategy), **limits)
        if solution.recomputes not in self._found:
            name, note = self._names
            schedule = schedule_of(self._step, solution, planned, COMPILED, settings=settings, name=name, note=note)
            self._say(f"compiling a plan that holds {size(solution.peak)} where it is interpreted")
            predicted = predict_memory(schedule, self._limit, self._artefacts, schedule.namespaces)
            self._say(f"it holds {size(predicted.peak)}, of {size(self._limit)}")
            self._found[solution.recomputes] = _Attempt(planned, schedule, predicted)
        return self._found[solution.recomputes].predicted


def _chosen(kept: Sequence[_Attempt], device: torch.device) -> _Attempt:
    """What holds least of what is as fast as the fastest. Only what differs between two plans is uncertain: what they
    share took equally long in both, so that a recomputation that one has more is reported from noise however short it
    is."""
    ns = ns_of((function for one in kept for function in one.predicted.functions), device)
    parts = [Counter(one.predicted.parts(ns)) for one in kept]
    fastest = min(parts, key=_sum)
    alike = [
        one
        for one, part in zip(kept, parts, strict=True)
        if _sum(part) - _sum(fastest) <= _NOISE * _sum(part - fastest)
    ]
    return min(alike, key=lambda one: (one.predicted.peak, one.schedule.solve.time))


def _sum(parts: Counter[int]) -> int:
    return sum(ns * count for ns, count in parts.items())
