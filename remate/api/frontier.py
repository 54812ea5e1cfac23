"""`remate.frontier`: one step planned under many budgets, where each solve uses what the others have built and
found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from msgspec.structs import replace

from remate_runtime.format import Schedule

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
from .meant import check_meant
from .options import SearchKeywords, options_of, takes
from .plan import prepare, schedule_of
from .progress import Progress, telling
from .settings import settings_of


@takes(SearchKeywords)
def frontier(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    budgets: Sequence[str | int] = ("80%", "60%", "40%"),
    cost: str | None = None,
    *,
    device: str | None = None,
    **options: Unpack[SearchKeywords],
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
    requested = [parse_budget(budget) for budget in budgets]
    chosen = options_of("frontier", SearchKeywords, options, device=device)
    gpu, call = gpu_elsewhere(device), called(model, args, kwargs)
    cost, settings = cost_for(gpu, cost), settings_of(chosen)
    check_meant(call)
    warn_of_doubts(cost, gpu, call)
    sizes = OpenSizes(chosen.dims, largest=all(one.share is None for one in requested))
    with telling(chosen.progress) as say:
        step = prepare(call, cost=cost, options=chosen, open_sizes=sizes, gpu=gpu, progress=say)
        search: dict[str, Any] = {"policy": policy(chosen.strategy), "effort": effort_named(chosen.effort)}
        sweep = Sweep(step, time_limit=chosen.time_limit, gap=chosen.gap, progress=say, **search)
        texts = {one.resolve(sweep.baseline_peak): str(text) for one, text in zip(requested, budgets, strict=True)}
        limits = sorted(texts)
        for limit in limits:
            if sweep.interrupted:
                break
            sweep.solve(limit)
        if not sweep.found and limits:
            failed = InfeasibleError(limits[-1], sweep.smallest, sweep.floor, chosen.strategy, sweep.floor_of_delivered)
            raise failed.at(step.planned, is_estimated(cost))
        about: dict[str, Any] = {"name": chosen.name or type(call.model).__name__, "note": chosen.note}
        return [
            schedule_of(step, solution, limit, cost, settings=replace(settings, budget=texts[limit]), **about)
            for limit, solution in sweep.solutions().items()
        ]


class Sweep:
    """Solutions of one step by budget. Budgets are best solved from the smallest to the largest, for a schedule of one
    is a schedule of every larger one. smallest: bytes, the least peak known; floor: bytes, none is smaller.
    interrupted: Ctrl-C was pressed."""

    def __init__(
        self,
        step: Hierarchy,
        *,
        policy: Policy = AUTO,
        effort: Effort = NORMAL,
        time_limit: float | None = None,
        gap: float = 0.002,
        progress: Progress | None = None,
    ) -> None:
        self.step, self.gap = step, gap
        self._policy, self._effort, self._time_limit = policy, effort, time_limit
        self._say = progress or (lambda text: None)
        self._instance, self._pool = StepInstance(step.captured.graph, step.parts), CandidatePool()
        self.baseline = self._instance.baseline
        self.baseline_peak, self.baseline_time = self.baseline.peak, self.baseline.time
        self.floor, self.floor_of_delivered = self._instance.floor, self._instance.floor_of_delivered
        self.smallest = self.baseline_peak
        self.found: dict[int, Solution] = {}

    @property
    def interrupted(self) -> bool:
        return self._pool.interrupted

    @property
    def candidates(self) -> list[Candidate]:
        """What all searches have found, none of it both slower and larger than another."""
        return [one for one in self._pool.candidates if made_by(one, self._policy.names)]

    def least(self) -> list[Candidate]:
        """What a search for the smallest peak finds, whatever has been searched before."""
        pool = CandidatePool()
        request = Request(self.floor, self.gap, self._effort)
        with contextlib.suppress(InfeasibleError):
            solve(self._instance, request, self._policy, pool=pool, time_limit=self._time_limit)
        self._pool.interrupted |= pool.interrupted
        return [one for one in pool.candidates if made_by(one, self._policy.names)]

    def solve(
        self, budget: int, label: str = "", *, policy: Policy | None = None, effort: Effort | None = None
    ) -> Solution | None:
        """The solution for a budget in bytes, or None if none was found. policy, effort: in place of those of the
        sweep."""
        progress: Callable[[str], None] = lambda text: self._say(f"{label or budget}: {text}")  # noqa: E731
        options: dict[str, Any] = {"pool": self._pool, "time_limit": self._time_limit, "progress": progress}
        try:
            request = Request(budget, self.gap, effort or self._effort)
            found = solve(self._instance, request, policy or self._policy, **options)
        except InfeasibleError as error:
            self.smallest = min(self.smallest, error.smallest)
            return None
        self.smallest = min(self.smallest, found.peak)
        self.found[budget] = found
        return found

    def solutions(self) -> dict[int, Solution]:
        """By ascending budget, each with the best schedule and the best bound that any solve has given: a bound for a
        budget holds for all smaller ones."""
        made: dict[int, Solution] = {}
        bound = 0
        for budget, solution in sorted(self.found.items(), reverse=True):
            bound = max(bound, solution.lower_bound)
            made[budget] = self._improved(budget, solution, bound)
        return dict(sorted(made.items()))

    def _improved(self, budget: int, given: Solution, bound: int) -> Solution:
        best = self._pool.best(budget, self._policy.names)
        if best is not None and best.time < given.time:
            made = {"strategy": best.strategy, "solver": best.solver}
            given = replace(given, recomputes=best.recomputes, peak=best.peak, time=best.time, **made)
        bound = min(bound, given.time)
        gap = (given.time - bound) / max(1, given.baseline_time)
        if gap <= 1e-9:
            given = replace(given, stopped_by="optimal")
        elif gap <= self.gap and given.stopped_by == "heuristic":
            given = replace(given, stopped_by="gap")
        return replace(given, lower_bound=bound, gap=gap)


def requested_of(texts: Sequence[str], baseline_peak: int) -> list[RequestedBudget]:
    """Budgets in bytes, ascending, each once."""
    found = {parse_budget(text).resolve(baseline_peak): text for text in reversed(texts)}
    return [RequestedBudget(text, limit) for limit, text in sorted(found.items())]
