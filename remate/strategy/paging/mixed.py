"""Recomputing and paging together: pages on top of what other strategies have found for larger budgets.

`mixed` looks for recomputations under the budget and under a few larger ones, lets pages make up the difference, and
takes the fastest, by the simulator; what recomputes only is among them. `offload-only` pages and recomputes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from remate_runtime.format import PageMemory
from remate_runtime.support.quantities import size

from ...errors import InfeasibleError
from ..base import Candidate, Request
from ..effort import QUICK
from ..instance import StepInstance
from ..pool import CandidatePool
from ..portfolio import AUTO, Policy
from ..solve import Solution, solve
from .greedy import ORDERS, Paged, page

WEIGHT_OFFLOADING = "weight-offloading"
PAGED_STRATEGIES = ("mixed", "offload-only", WEIGHT_OFFLOADING)
_LARGER = 3  # budgets between the requested one and the peak of the baseline
_STARTS = 8  # schedules that pages are put on
_WORTH = 0.03  # of the peak must be able to leave in the time of forward


class PagingLimits(NamedTuple):
    """limits: bytes that a step may keep in each memory. only: recompute nothing."""

    limits: Mapping[PageMemory, int]
    only: bool


def paged_solution(
    instance: StepInstance,
    request: Request,
    paging: PagingLimits,
    policy: Policy = AUTO,
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Solution:
    """The fastest schedule found within the budget, with pages where they help.

    Args:
        instance: The step; its lanes are those that the graph has.
        request: What is asked; `budget` is of the device.
        paging: What may be paged.
        policy: How recomputations are searched for.
        time_limit: Seconds for each search of recomputations.
        progress: Called with a line of text now and then.

    Returns:
        The solution. With pages it has no bound: those there are hold for schedules that recompute only.

    Raises:
        InfeasibleError: Nothing fits, with pages neither.
    """
    pool, failed, plain = CandidatePool(), None, None
    if not paging.only:
        try:
            plain = solve(instance, request, policy, pool=pool, time_limit=time_limit, progress=progress)
        except InfeasibleError as error:
            failed = error
    base = instance.baseline
    if base.peak <= request.budget or (plain is not None and not _worth(instance, paging)):
        if plain is not None:
            progress("nothing is paged: too little could leave while forward runs, or everything fits")
            return plain
        return _of(instance, Paged(base.recomputes, (), base.peak, base.time), base)
    starts = [base] if paging.only else _starts(instance, request, policy, pool, progress)
    found: list[tuple[Paged, Candidate]] = []
    for start in starts:
        for order in ORDERS:
            made = page(instance.graph, start.recomputes, request.budget, paging.limits, order)
            if made is not None:
                found.append((made, start))
    best = min(found, key=lambda one: (one[0].time, len(one[0].pages)), default=None)
    if best is None and plain is None:
        raise failed or InfeasibleError(
            request.budget, base.peak, instance.floor, "offload-only", None, base.peak, struck=False, holder=""
        )
    if plain is not None:
        _compare(instance, plain, None if best is None else best[0], progress)
        if best is None or best[0].time >= plain.time:
            return plain
    assert best is not None
    return _of(instance, *best)


def _worth(instance: StepInstance, paging: PagingLimits) -> bool:
    """Whether a notable part of the peak could leave while forward runs."""
    graph = instance.graph
    forward = sum(op.ns for op in graph.operations[: graph.backward_start])
    fastest = max(graph.lanes[memory].out for memory in paging.limits)
    return fastest * forward / 1e9 >= _WORTH * instance.baseline.peak


def _starts(
    instance: StepInstance,
    request: Request,
    policy: Policy,
    pool: CandidatePool,
    progress: Callable[[str], None],
) -> list[Candidate]:
    """Schedules that take more than the budget, and the time that recomputing saves for it: the baseline first."""
    base = instance.baseline
    for part in range(1, _LARGER + 1):
        larger = request.budget + (base.peak - request.budget) * part // (_LARGER + 1)
        progress(f"looking for recomputations within {size(larger)}, for pages to make up the rest")
        try:
            solve(instance, replace(request, budget=larger, effort=QUICK), policy, pool=pool)
        except InfeasibleError:
            continue
    able = [one for one in pool.candidates if one.order is None and one.peak > request.budget]
    step = max(1, len(able) // _STARTS)
    return [base, *(one for one in able[::step] if one.recomputes)]


def _compare(instance: StepInstance, plain: Solution, best: Paged | None, progress: Callable[[str], None]) -> None:
    base = instance.baseline.time or 1
    paged = "nothing that fits" if best is None else f"{(best.time / base - 1) * 100:.2f}% more time"
    progress(f"recomputing only: {(plain.time / base - 1) * 100:.2f}% more time; with pages: {paged}")


def _of(instance: StepInstance, found: Paged, start: Candidate) -> Solution:
    base = instance.baseline
    recomputed = [] if not found.recomputes else start.strategy.split("+")
    return Solution(
        found.recomputes,
        found.peak,
        found.time,
        base.peak,
        base.time,
        base.time,
        0.0,
        "heuristic",
        "+".join([*recomputed, "page"]),
        start.solver,
        pages=found.pages,
    )
