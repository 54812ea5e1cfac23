"""`remate.frontier`: plans one step for many budgets. Each solve reuses the work of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from msgspec.structs import replace

from remate_runtime.format import Schedule, Settings
from remate_runtime.support.quantities import size

from ..budget import RequestedBudget, parse_budget
from ..capture.recorded import called
from ..dims.open_sizes import OpenSizes
from ..errors import InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..profile.devices import is_estimated
from ..strategy import (
    AUTO,
    NORMAL,
    Candidate,
    CandidatePool,
    Effort,
    Policy,
    Request,
    Solution,
    StepInstance,
    effort_named,
    made_by,
    policy,
    solve,
)
from .elsewhere import cost_for, gpu_elsewhere, warn_of_doubts
from .options import FrontierKeywords, options_of, takes
from .plan import prepare
from .progress import Progress, silent, telling
from .settings import settings_of
from .tried_parts import proposing_what_works
from .untrained import require_training
from .writing import schedule_of


@takes(FrontierKeywords)
def frontier(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    budgets: Sequence[str | int] = ("80%", "60%", "40%"),
    cost: str | None = None,
    *,
    device: str | None = None,
    **options: Unpack[FrontierKeywords],
) -> list[Schedule]:
    """Plan one training step under each of several budgets.

    Args:
        model: The live model, or a call that `remate.record` recorded.
        args: Positional arguments of the call to plan.
        kwargs: Keyword arguments of the call to plan.
        budgets: Budgets as for `remate.plan`.
        cost: As for `remate.plan`.
        device: As for `remate.plan`.
        profile: As for `remate.plan`.
        cache: As for `remate.plan`.
        measure_again: As for `remate.plan`.
        time_limit: Seconds for each budget, as a safety net.
        gap: As for `remate.plan`.
        strategy: As for `remate.plan`.
        effort: As for `remate.plan`.
        differentiate: As for `remate.plan`.
        gradients: As for `remate.plan`.
        dims: As for `remate.plan`. The plan is for the largest size if all budgets are in bytes, else for the example.
        live: As for `remate.plan`.
        name: As for `remate.plan`.
        note: As for `remate.plan`.
        progress: As for `remate.plan`.
        split: As for `remate.plan`. Each budget gets the fastest number of tiles.

    Returns:
        Schedules by ascending budget. Each is at least as fast as those of smaller budgets. Budgets for which no
        schedule was found are left out.

    Raises:
        InfeasibleError: No budget at all has a schedule.
        RemateError: Whatever `remate.plan` raises.

    Examples:
        >>> import remate, torch
        >>> from torch import nn
        >>> model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        >>> schedules = remate.frontier(model, (torch.randn(1024, 64),), budgets=["100%", "80%"], cost="cpu")
        >>> [schedule.budget_bytes <= schedule.baseline_peak_bytes for schedule in schedules]
        [True, True]
    """

    from .split_goals import sweep_of

    requested = [parse_budget(budget) for budget in budgets]
    chosen = options_of("frontier", FrontierKeywords, options, device=device)
    gpu, call = gpu_elsewhere(device), called(model, args, kwargs)
    cost, settings = cost_for(gpu, cost), settings_of(chosen)
    require_training(call)
    warn_of_doubts(cost, gpu, call)
    sizes = OpenSizes(chosen.dims, largest=all(budget.share is None for budget in requested))
    with telling(chosen.progress) as say, proposing_what_works(call, chosen, gpu):
        step = prepare(call, cost=cost, options=chosen, open_sizes=sizes, gpu=gpu, progress=say)
        sweep = sweep_of(step, settings, cost, budgets, say)
        texts = {
            budget.resolve(sweep.baseline_peak): str(text) for budget, text in zip(requested, budgets, strict=True)
        }
        limits = sorted(texts)
        for limit in limits:
            if sweep.interrupted:
                break
            sweep.solve(limit)
        if not sweep.by_budget and limits:
            error = InfeasibleError(limits[-1], sweep.smallest, sweep.floor, chosen.strategy, sweep.floor_of_delivered)
            raise error.at(step.planned, is_estimated(cost))
        about: dict[str, Any] = {"name": chosen.name or type(call.model).__name__, "note": chosen.note}
        return [
            schedule_of(
                step,
                solution,
                limit,
                cost,
                settings=replace(settings, budget=texts[limit]),
                tiled=sweep.tiled(limit),
                **about,
            )
            for limit, solution in sweep.solutions().items()
        ]


class Sweep:
    """Solves one step for several budgets, and keeps all plans for the next budget.

    Solve the smallest budget first, because its schedule is valid for every larger one.

    Attributes:
        instance: The step, as strategies see it.
        smallest: Smallest known peak, in bytes.
        floor: Lower limit of the peak, in bytes.
        interrupted: Whether Ctrl-C was pressed.
        by_budget: Solutions by budget.
    """

    def __init__(
        self,
        step: Hierarchy,
        *,
        instance: StepInstance | None = None,
        policy: Policy = AUTO,
        effort: Effort = NORMAL,
        time_limit: float | None = None,
        gap: float = 0.002,
        progress: Progress | None = None,
    ) -> None:
        self.step, self.gap = step, gap
        self._policy, self._effort, self._time_limit = policy, effort, time_limit
        self._say = progress or silent
        self.instance, self._pool = instance or StepInstance(step.captured.graph, step.parts), CandidatePool()
        self.baseline = self.instance.baseline
        self.baseline_peak, self.baseline_time = self.baseline.peak, self.baseline.time
        self.floor, self.floor_of_delivered = self.instance.floor, self.instance.floor_of_delivered
        self.smallest = self.baseline_peak
        self.by_budget: dict[int, Solution] = {}

    @classmethod
    def with_settings(
        cls, step: Hierarchy, settings: Settings, progress: Progress | None, instance: StepInstance | None = None
    ) -> Sweep:
        """Return a sweep with the strategy, effort, limit in seconds and gap of settings."""
        return cls(
            step,
            instance=instance,
            policy=policy(settings.strategy),
            effort=effort_named(settings.effort),
            time_limit=settings.time_limit,
            gap=settings.gap,
            progress=progress,
        )

    @property
    def interrupted(self) -> bool:
        return self._pool.interrupted

    def tiled(self, budget: int) -> None:
        """Return the split step of a budget: none, as nothing is split."""

    @property
    def candidates(self) -> list[Candidate]:
        """The undominated plans of all searches."""
        return [plan for plan in self._pool.candidates if made_by(plan, self._policy.names)]

    def least(self) -> list[Candidate]:
        """The plans of a new search for the smallest peak."""
        pool = CandidatePool()
        request = Request(self.floor, self.gap, self._effort)
        with contextlib.suppress(InfeasibleError):
            solve(self.instance, request, self._policy, pool=pool, time_limit=self._time_limit)
        self._pool.interrupted |= pool.interrupted
        return [plan for plan in pool.candidates if made_by(plan, self._policy.names)]

    def solve(
        self, budget: int, label: str = "", *, policy: Policy | None = None, effort: Effort | None = None
    ) -> Solution | None:
        """Solve one budget.

        Args:
            budget: The budget in bytes.
            label: Its text in lines of progress.
            policy: Strategies to use instead of those of the sweep.
            effort: Effort to use instead of that of the sweep.

        Returns:
            The solution, or None if no plan fits.
        """
        progress: Callable[[str], None] = lambda text: self._say(f"{label or size(budget)}: {text}")  # noqa: E731
        options: dict[str, Any] = {"pool": self._pool, "time_limit": self._time_limit, "progress": progress}
        try:
            request = Request(budget, self.gap, effort or self._effort)
            solution = solve(self.instance, request, policy or self._policy, **options)
        except InfeasibleError as error:
            self.smallest = min(self.smallest, error.smallest)
            return None
        self.smallest = min(self.smallest, solution.peak)
        self.by_budget[budget] = solution
        return solution

    def solved_or_baseline(self, budget: int) -> tuple[int, Solution]:
        """Return the best solution of a budget. If the requested strategies have none, return the baseline's peak and
        solution."""
        if self.solve(budget) is None:
            budget = self.baseline_peak
            self.solve(budget)
        return budget, self.solutions()[budget]

    def solutions(self) -> dict[int, Solution]:
        """Solutions by ascending budget, each with the best plan and bound of all solves.

        A bound for a budget holds for all smaller budgets.
        """
        improved: dict[int, Solution] = {}
        bound = 0
        for budget, solution in sorted(self.by_budget.items(), reverse=True):
            bound = max(bound, solution.lower_bound)
            improved[budget] = self._improved(budget, solution, bound)
        return dict(sorted(improved.items()))

    def _improved(self, budget: int, given: Solution, bound: int) -> Solution:
        best = self._pool.best(budget, self._policy.names)
        if best is not None and best.time < given.time:
            origin = {"strategy": best.strategy, "solver": best.solver}
            given = replace(given, recomputes=best.recomputes, peak=best.peak, time=best.time, **origin)
        bound = min(bound, given.time)
        gap = (given.time - bound) / max(1, given.baseline_time)
        if gap <= 1e-9:
            given = replace(given, stopped_by="optimal")
        elif gap <= self.gap and given.stopped_by == "heuristic":
            given = replace(given, stopped_by="gap")
        return replace(given, lower_bound=bound, gap=gap)


def requested_of(texts: Sequence[str], baseline_peak: int) -> list[RequestedBudget]:
    """Distinct budgets in bytes, ascending."""
    texts_by_limit = {parse_budget(text).resolve(baseline_peak): text for text in reversed(texts)}
    return [RequestedBudget(text, limit) for limit, text in sorted(texts_by_limit.items())]
