"""Budgets that nobody has to guess: the smallest peak for a time, and the knee of the curve of peak and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.format import Schedule, Settings
from remate_runtime.support.quantities import overhead, size

from ..budget import BudgetError, parse_budget
from ..partition.hierarchy import Hierarchy
from ..strategy import QUICK, Candidate, effort_named, policy
from .frontier import Sweep
from .plan import schedule_of
from .progress import Progress

MIN, FIT = "min", "fit"
_SPANS = (0.6, 0.3, 0.1)  # of what lies between floor and baseline: where the curve is looked at
_HALVINGS = 2  # of what lies between the smallest peak that is fast enough and the largest that is not
_HINT = "\n  hint: write slowdown='10%', or 0.1, for a step that takes at most a tenth longer"


class Goal(msgspec.Struct, frozen=True):
    """What a plan is for, in place of a budget. slowdown: the share of the baseline time that it may cost; None:
    whatever it costs. knee: where less memory begins to cost more than it brings."""

    slowdown: Fraction | None = None
    knee: bool = False


def goal_of(budget: str | int | None, slowdown: str | float | None) -> Goal | None:
    """The goal that these arguments stand for; None for a budget of so many bytes, or such a share. Raises
    BudgetError."""
    if budget == FIT:
        raise BudgetError(
            "budget='fit' is for a device whose memory is its own, and what it leaves is not known before training runs"
            "\n  hint: remate.fit(model, args, device_memory='24GiB', optimizer='adamw'), or --device-memory 24GiB"
        )
    if slowdown is None:
        return Goal(knee=True) if budget is None else Goal() if budget == MIN else None
    if budget not in (None, MIN):
        raise BudgetError(
            f"budget={budget!r} and slowdown={slowdown!r} ask for two things\n  hint: leave one of them out"
        )
    try:
        text = str(slowdown).strip()
        share = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    except ValueError:
        share = Fraction(-1)
    if share < 0:
        raise BudgetError(f"the slowdown {slowdown!r} is no share of the time{_HINT}")
    if share >= 5:
        raise BudgetError(f"the slowdown {slowdown!r} is {float(share):g} times the step{_HINT}")
    return Goal(share)


def check_budget(budget: str | int | None, slowdown: str | float | None = None) -> None:
    """Raise BudgetError for what is neither a budget nor a goal."""
    if goal_of(budget, slowdown) is None and budget is not None:
        parse_budget(budget)


def chosen_budget(goal: Goal, sweep: Sweep, say: Callable[[str], None]) -> int:
    """Bytes: the budget that meets a goal, as a quick search sees it. One is always found. What it found is left in
    `sweep`."""
    base, floor = sweep.baseline, min(sweep.floor, sweep.baseline_peak)
    spans = (0.0,) if goal.slowdown is None and not goal.knee else _SPANS
    for span in spans:
        if sweep.interrupted:
            break
        sweep.solve(int(floor + span * (base.peak - floor)), "looking at the curve", effort=QUICK)
    if goal.slowdown is None and not goal.knee:
        return min(sweep.smallest, *(one.peak for one in sweep.candidates))
    curve = _curve(sweep)
    if goal.knee:
        found = _knee(curve)
        say(_told(curve, found, base))
        return found.peak
    assert goal.slowdown is not None
    allowed = int(base.time * (1 + goal.slowdown))
    for _ in range(_HALVINGS):
        enough = min((one.peak for one in _curve(sweep) if one.time <= allowed), default=base.peak)
        below = max((one.peak for one in _curve(sweep) if one.time > allowed and one.peak < enough), default=floor)
        if sweep.interrupted or enough - below <= base.peak // 100:
            break
        sweep.solve((enough + below) // 2, "looking at the curve", effort=QUICK)
    return min((one.peak for one in _curve(sweep) if one.time <= allowed), default=base.peak)


def _curve(sweep: Sweep) -> list[Candidate]:
    """What was found, the largest peak first; each is slower than those before."""
    return [*sweep.candidates] or [sweep.baseline]


def _knee(curve: Sequence[Candidate]) -> Candidate:
    """The point that lies deepest below the line from one end of the curve to the other."""
    first, last = curve[0], curve[-1]
    width, height = max(1, first.peak - last.peak), max(1, last.time - first.time)
    return min(curve, key=lambda one: ((one.peak - last.peak) / width + (one.time - first.time) / height, one.time))


def _told(curve: Sequence[Candidate], found: Candidate, base: Candidate) -> str:
    """`18.1 MiB +0.00%, 9.20 MiB +4.12% (chosen), 7.00 MiB +31.05%`."""
    shown = sorted({0, len(curve) - 1, curve.index(found), len(curve) // 3, 2 * len(curve) // 3})
    points = []
    for one in (curve[at] for at in shown):
        more = f"{size(one.peak)} {overhead(one.time, base.time, 'no cost')}"
        points.append(f"{more} (the knee, chosen)" if one is found else more)
    return f"no budget was given; peak and extra time: {', '.join(points)}; budget= or slowdown= asks for another"


def plan_for_goal(
    step: Hierarchy,
    settings: Settings,
    cost: str,
    goal: Goal,
    tell: Progress,
    *,
    name: str,
    note: str = "",
    progress: Progress | None = None,
) -> Schedule:
    """As `plan_step`, for a goal in place of a budget; the file has the budget that it came to, in bytes. tell: is told
    of the curve."""
    search: dict[str, Any] = {"policy": policy(settings.strategy), "effort": effort_named(settings.effort)}
    sweep = Sweep(step, time_limit=settings.time_limit, gap=settings.gap, progress=progress, **search)
    limit = chosen_budget(goal, sweep, tell)
    if sweep.solve(limit) is None:  # the strategies asked for reach nothing but the baseline
        limit = sweep.baseline_peak
        sweep.solve(limit)
    settings = replace(settings, budget=str(limit))
    return schedule_of(step, sweep.solutions()[limit], limit, cost, settings=settings, name=name, note=note)
