"""Planning for a goal where splits are permitted: the number of tiles with the smallest peak that meets the goal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.format import Schedule, Settings
from remate_runtime.support.quantities import overhead, size

from ..partition.hierarchy import Hierarchy
from ..splits.tiled_step import TiledStep
from ..strategy import StepInstance, effort_named, policy
from .frontier import Sweep
from .goals import Goal, chosen_budget
from .progress import Progress
from .splitting import beside_whole, tiled_steps, while_better
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
    say = progress or (lambda text: None)
    best = min(_reached(step, whole, settings, cost, goal, say), key=_figure)
    limit = best.peak
    if best.sweep.solve(limit) is None:  # the requested strategies have no plan but the baseline
        limit = best.sweep.baseline_peak
        best.sweep.solve(limit)
    solution = beside_whole(best.sweep.solutions()[limit], whole)
    settings = replace(settings, budget=str(limit))
    return schedule_of(step, solution, limit, cost, settings=settings, name=name, note=note, tiled=best.tiled)


def _figure(reached: _Reached) -> tuple[int, int]:
    return reached.peak, reached.time


def _reached(
    step: Hierarchy, whole: StepInstance, settings: Settings, cost: str, goal: Goal, say: Progress
) -> Iterator[_Reached]:
    """Yield what the step reaches without splits, and with each number of tiles that meets the goal."""
    search: dict[str, Any] = {"policy": policy(settings.strategy), "effort": effort_named(settings.effort)}
    search |= {"time_limit": settings.time_limit, "gap": settings.gap, "progress": say}

    def attempt(tiled: TiledStep | None, words: str) -> _Reached | None:
        instance = whole if tiled is None else StepInstance(tiled.expanded.graph, tiled.blocks)
        sweep = Sweep(step, instance=instance, **search)
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
        for reached in while_better(attempts, lambda one: (1 << 62, 0) if one is None else _figure(one)):
            if reached is not None:
                yield reached
                interrupted |= reached.sweep.interrupted
            if interrupted:
                return
