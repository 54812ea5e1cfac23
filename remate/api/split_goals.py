"""Planning for a goal, or for many budgets, where splits are permitted.

For a goal, it is the number of tiles with the smallest peak that meets it; for a budget, the fastest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.format import Schedule, Settings
from remate_runtime.support.quantities import overhead, size

from ..budget import parse_budget
from ..partition.hierarchy import Hierarchy
from ..splits.tiled_step import TiledStep
from ..strategy import QUICK, Solution, StepInstance
from .frontier import Sweep
from .goals import Goal, chosen_budget
from .progress import Progress, silent
from .splitting import NEVER, beside_whole, tiled_steps, while_better
from .writing import schedule_of


class _Reached(msgspec.Struct, frozen=True):
    """What a step with so many tiles reaches; without any, the step as it is.

    Attributes:
        peak: The smallest peak that meets the goal.
        time: The time of its schedule in ns.
    """

    sweep: Sweep
    tiled: TiledStep | None
    peak: int
    time: int


def plan_split_for_goal(
    step: Hierarchy,
    settings: Settings,
    cost: str,
    goal: Goal,
    *,
    name: str,
    note: str = "",
    progress: Progress | None = None,
) -> Schedule:
    """Plan a step as `plan_for_goal` does, with splits where they lower the peak.

    Args:
        step: The prepared step.
        settings: Settings to record, without a budget.
        cost: The cost model of the step.
        goal: The goal, but not a knee.
        name: Name of the schedule.
        note: Note for the file.
        progress: Function that gets lines of progress.
    """
    whole = StepInstance(step.captured.graph, step.parts)
    say = progress or silent
    best = min(_reached(step, whole, settings, cost, goal, say), key=_figure)
    limit, solution = best.sweep.solved_or_baseline(best.peak)
    about: dict[str, Any] = {"settings": replace(settings, budget=str(limit)), "name": name, "note": note}
    return schedule_of(step, beside_whole(solution, whole), limit, cost, tiled=best.tiled, **about)


def _figure(reached: _Reached) -> tuple[int, int]:
    return reached.peak, reached.time


def _reached(
    step: Hierarchy, whole: StepInstance, settings: Settings, cost: str, goal: Goal, say: Progress
) -> Iterator[_Reached]:
    """Yield what the step reaches without splits, and with each number of tiles that meets the goal."""

    def attempt(tiled: TiledStep | None, words: str) -> _Reached | None:
        instance = whole if tiled is None else StepInstance(tiled.expanded.graph, tiled.blocks)
        sweep = Sweep.with_settings(step, settings, say, instance)
        limit = chosen_budget(goal, sweep, say, whole.baseline)
        times = [plan.time for plan in (*sweep.candidates, sweep.baseline) if plan.peak <= limit]
        if not times or (goal.slowdown is not None and min(times) > goal.allowed(whole.baseline.time)):
            say(f"{words}: too slow")
            return None
        say(f"{words}: peak {size(limit)}, {overhead(min(times), whole.baseline.time, 'no cost')}")
        return _Reached(sweep, tiled, limit, min(times))

    first = attempt(None, "without a split")
    assert first is not None  # the baseline meets every goal
    yield first
    interrupted = first.sweep.interrupted
    for family in tiled_steps(step, whole, settings.split, cost):
        if interrupted:
            return
        attempts = (attempt(tiled, words) for words, tiled in family)
        for reached in while_better(attempts, lambda solution: (NEVER, 0) if solution is None else _figure(solution)):
            if reached is not None:
                yield reached
                interrupted |= reached.sweep.interrupted
            if interrupted:
                return


def sweep_of(
    step: Hierarchy, settings: Settings, cost: str, budgets: Sequence[str | int], progress: Progress | None
) -> Sweep | SplitSweep:
    """Return the searches for several budgets: with splits if the settings permit them."""
    if settings.split:
        return SplitSweep(step, settings, cost, budgets, progress)
    return Sweep.with_settings(step, settings, progress)


class SplitSweep:
    """Solves one step for several budgets, as `Sweep` does, with splits where they help.

    The numbers of tiles are searched at the first budget of all that are to be solved; the smallest comes first.

    Attributes:
        smallest: Smallest known peak, in bytes.
        floor: Lower limit of the peak without splits and with those that were tried, in bytes.
        by_budget: Solutions by budget.
    """

    def __init__(
        self, step: Hierarchy, settings: Settings, cost: str, budgets: Sequence[str | int], progress: Progress | None
    ) -> None:
        self.step, self._settings, self._cost = step, settings, cost
        self._say = progress or silent
        self._whole = StepInstance(step.captured.graph, step.parts)
        self.baseline_peak, self.baseline_time = self._whole.baseline.peak, self._whole.baseline.time
        self.floor_of_delivered = self._whole.floor_of_delivered
        self._limits = sorted(parse_budget(budget).resolve(self.baseline_peak) for budget in budgets)
        self._sweeps: list[tuple[TiledStep | None, Sweep]] = []
        self._chosen: dict[int, tuple[TiledStep | None, Sweep]] = {}
        self.by_budget: dict[int, Solution] = {}

    @property
    def interrupted(self) -> bool:
        return any(sweep.interrupted for _, sweep in self._sweeps)

    @property
    def floor(self) -> int:
        return min(self._whole.floor, *(sweep.floor for _, sweep in self._sweeps))

    @property
    def smallest(self) -> int:
        return min((sweep.smallest for _, sweep in self._sweeps), default=self.baseline_peak)

    def tiled(self, budget: int) -> TiledStep | None:
        """Return the split step that was chosen for a budget; None without splits."""
        return self._chosen[budget][0]

    def solve(self, budget: int, label: str = "") -> Solution | None:
        """Solve one budget. Return the solution, or None if no plan fits. label: its text in lines of progress."""
        self._sweeps = self._sweeps or [*self._numbers_of_tiles()]
        label = label or str(budget)
        quick = [(each[1].solve(budget, label, effort=QUICK), at) for at, each in enumerate(self._sweeps)]
        fitting = [(solution.time, solution.peak, at) for solution, at in quick if solution is not None]
        if not fitting:
            return None
        self._chosen[budget] = self._sweeps[min(fitting)[2]]
        solution = self._chosen[budget][1].solve(budget, label)
        assert solution is not None  # at least that of the quick search
        self.by_budget[budget] = beside_whole(solution, self._whole)
        return self.by_budget[budget]

    def solutions(self) -> dict[int, Solution]:
        """Return the best solutions by ascending budget."""
        return {
            budget: beside_whole(self._chosen[budget][1].solutions()[budget], self._whole)
            for budget in sorted(self.by_budget)
        }

    def _numbers_of_tiles(self) -> Iterator[tuple[TiledStep | None, Sweep]]:
        """Yield the step without splits, and in tiles until more of them are faster at no budget."""

        def attempt(instance: StepInstance, tiled: TiledStep | None, words: str) -> tuple[TiledStep | None, Sweep]:
            sweep = Sweep.with_settings(self.step, self._settings, self._say, instance)
            for limit in self._limits:
                if not sweep.interrupted:
                    sweep.solve(limit, words, effort=QUICK)
            return tiled, sweep

        def times(tried: tuple[TiledStep | None, Sweep]) -> int:
            solutions = tried[1].by_budget
            return sum(solutions[limit].time if limit in solutions else NEVER for limit in self._limits)

        yield attempt(self._whole, None, "without a split")
        for family in tiled_steps(self.step, self._whole, self._settings.split, self._cost):
            attempts = (attempt(StepInstance(t.expanded.graph, t.blocks), t, words) for words, t in family)
            for tried in while_better(attempts, times):
                yield tried
                if tried[1].interrupted:
                    return
