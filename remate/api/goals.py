"""Budgets derived from a goal: the smallest peak for a time, or the knee of the curve of peak and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec
from msgspec.structs import replace

from remate_runtime.format import Schedule, Settings
from remate_runtime.support.quantities import overhead, size

from ..budget import BudgetError, parse_budget
from ..partition.hierarchy import Hierarchy
from ..strategy import QUICK, Candidate
from .frontier import Sweep
from .progress import Progress
from .writing import schedule_of

MIN, FIT = "min", "fit"
_SPANS = (0.6, 0.3, 0.1)  # budgets to solve, as shares of the range from floor to baseline
_HALVINGS = 2  # of the range between the smallest peak that is fast enough and the largest that is not
_HINT = "\n  hint: write slowdown='10%', or 0.1, for a step that takes at most a tenth longer"


class Goal(msgspec.Struct, frozen=True):
    """The goal of a plan without a budget.

    Attributes:
        slowdown: Extra time that the plan may cost, as a share of the baseline's time. None: no limit.
        knee: Choose the knee of the curve of peak and time.
    """

    slowdown: Fraction | None = None
    knee: bool = False

    def allowed(self, time: int) -> int:
        """Return the most ns that a plan may take, for a baseline that takes `time`. Only with a slowdown."""
        assert self.slowdown is not None
        return int(time * (1 + self.slowdown))


def goal_of(budget: str | int | None, slowdown: str | float | None) -> Goal | None:
    """The goal of these arguments; None if the budget is in bytes or a share. Raises BudgetError."""
    if budget == FIT:
        raise BudgetError(
            "budget='fit' is not supported here: the memory that the device leaves is unknown"
            "\n  hint: remate.fit(model, args, device_memory='24GiB', optimizer='adamw'), or --device-memory 24GiB"
        )
    if slowdown is None:
        return Goal(knee=True) if budget is None else Goal() if budget == MIN else None
    if budget not in (None, MIN):
        raise BudgetError(f"budget={budget!r} and slowdown={slowdown!r} exclude each other\n  hint: remove one of them")
    try:
        text = str(slowdown).strip()
        share = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    except ValueError:
        share = Fraction(-1)
    if share < 0:
        raise BudgetError(f"the slowdown {slowdown!r} is not a share of the time{_HINT}")
    if share >= 5:
        raise BudgetError(f"the slowdown {slowdown!r} is {float(share):g} times the time of the step{_HINT}")
    return Goal(share)


def check_budget(budget: str | int | None, slowdown: str | float | None = None) -> None:
    """Raise BudgetError if the arguments are neither a budget nor a goal."""
    if goal_of(budget, slowdown) is None and budget is not None:
        parse_budget(budget)


def chosen_budget(goal: Goal, sweep: Sweep, say: Callable[[str], None], base: Candidate | None = None) -> int:
    """Find the budget that meets a goal, in bytes, with quick searches. Their plans stay in `sweep`.

    Args:
        goal: The goal.
        sweep: The searches.
        say: Function that gets the curve as a line of text.
        base: What the slowdown is a share of. Default: the baseline of `sweep`.
    """
    base, floor = base or sweep.baseline, min(sweep.floor, sweep.baseline_peak)
    spans = (0.0,) if goal.slowdown is None and not goal.knee else _SPANS
    for span in spans:
        if sweep.interrupted:
            break
        sweep.solve(int(floor + span * (base.peak - floor)), "looking at the curve", effort=QUICK)
    if goal.slowdown is None and not goal.knee:
        return min(sweep.smallest, *(plan.peak for plan in sweep.candidates))
    curve = _curve(sweep)
    if goal.knee:
        knee = _knee(curve)
        say(_curve_text(curve, knee, base))
        return knee.peak
    allowed = goal.allowed(base.time)
    for _ in range(_HALVINGS):
        enough = min((plan.peak for plan in _curve(sweep) if plan.time <= allowed), default=base.peak)
        below = max((plan.peak for plan in _curve(sweep) if plan.time > allowed and plan.peak < enough), default=floor)
        if sweep.interrupted or enough - below <= base.peak // 100:
            break
        sweep.solve((enough + below) // 2, "looking at the curve", effort=QUICK)
    return min((plan.peak for plan in _curve(sweep) if plan.time <= allowed), default=base.peak)


def _curve(sweep: Sweep) -> list[Candidate]:
    """Known plans, the largest peak first. Each is slower than those before."""
    return [*sweep.candidates] or [sweep.baseline]


def _knee(curve: Sequence[Candidate]) -> Candidate:
    """The point farthest below the straight line between both ends of the curve."""
    first, last = curve[0], curve[-1]
    width, height = max(1, first.peak - last.peak), max(1, last.time - first.time)
    return min(curve, key=lambda plan: ((plan.peak - last.peak) / width + (plan.time - first.time) / height, plan.time))


def _curve_text(curve: Sequence[Candidate], knee: Candidate, base: Candidate) -> str:
    """`18.1 MiB +0.00%, 9.20 MiB +4.12% (chosen), 7.00 MiB +31.05%`."""
    shown = sorted({0, len(curve) - 1, curve.index(knee), len(curve) // 3, 2 * len(curve) // 3})
    points: list[str] = []
    for plan in (curve[at] for at in shown):
        point = f"{size(plan.peak)} {overhead(plan.time, base.time, 'no cost')}"
        points.append(f"{point} (the knee, chosen)" if plan is knee else point)
    return f"no budget was given; peak and extra time: {', '.join(points)}; budget= or slowdown= chooses another"


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
    """Plan a step for a goal instead of a budget. The file records the chosen budget in bytes.

    Args:
        step: The prepared step.
        settings: Settings to record, without a budget.
        cost: The cost model of the step.
        goal: The goal.
        tell: Function that gets the curve as a line of text.
        name: Name of the schedule.
        note: Note for the file.
        progress: Function that gets lines of progress.
    """
    if settings.split:
        from .split_goals import plan_split_for_goal

        return plan_split_for_goal(step, settings, cost, goal, name=name, note=note, progress=progress)
    sweep = Sweep.with_settings(step, settings, progress)
    limit, solution = sweep.solved_or_baseline(chosen_budget(goal, sweep, tell))
    settings = replace(settings, budget=str(limit))
    return schedule_of(step, solution, limit, cost, settings=settings, name=name, note=note)
