"""Recomputation and paging together.

`mixed` solves for recomputations at the budget and at a few larger budgets, and for the best choice among keeping,
recomputing and paging at the fullest operation (`paged_cut`). It adds pages to these schedules until they fit, and
takes the fastest schedule by the simulator. The recomputation-only schedule is always a candidate. `offload-only` pages
and recomputes nothing.
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
from ..milp.highs import SOLVER
from ..pool import CandidatePool
from ..portfolio import AUTO, Policy
from ..solve import Solution, solve
from .goal import POET
from .greedy import ORDERS, Paged, page
from .paged_cut import CutChoice, best_choice
from .proof import proven

WEIGHT_OFFLOADING = "weight-offloading"
PAGED_STRATEGIES = ("mixed", "offload-only", WEIGHT_OFFLOADING, POET)
NOTHING: frozenset[int] = frozenset()
_LARGER = (0.3, 0.6, 0.9)  # larger budgets: shares of the bytes that the lanes move during forward
_STARTS = 8  # schedules that pages are added to
_LARGE_STEP, _START_GAP = 2000, 0.004  # operations from which their search ends at this gap: it takes seconds less
_WORTH = 0.03  # share of the peak that must be able to leave during forward


class PagingLimits(NamedTuple):
    """limits: Most bytes of a step in each memory. only: Recompute nothing."""

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
    """Return the fastest schedule within the budget, with pages where they help.

    Args:
        instance: The step, with the lanes of its graph.
        request: The request; `budget` is of the device.
        paging: The memories to page to, and their limits.
        policy: The strategies that search for recomputations.
        time_limit: Seconds for each of these searches.
        progress: Called with a line of text at each stage.

    Returns:
        The solution. Its bound is of all schedules that recompute and page.

    Raises:
        InfeasibleError: No schedule fits, not even with pages.
    """
    pool, failed, plain = CandidatePool(), None, None
    if not paging.only:
        try:
            plain = solve(instance, request, policy, pool=pool, time_limit=time_limit, progress=progress)
        except InfeasibleError as error:
            failed = error
    base = instance.baseline
    if base.peak <= request.budget:
        progress("no pages: the step fits without them")
        return plain or _solution(instance, Paged(base.recomputes, (), base.peak, base.time), base, base.time)
    choice = _choice(instance, request, paging, time_limit, progress)
    bound = base.time if choice is None else choice.bound
    starts = [(base, NOTHING)]
    if plain is not None and not _worth(instance, paging):
        progress("hardly anything can leave during forward: trying pages without recomputation only")
    elif not paging.only:
        starts = _starts(instance, request, paging, policy, pool, progress)
        if choice is not None and (choice.pages or choice.recomputes):
            starts += [(start, choice.pages) for start, _ in starts]
            starts.append((instance.judged(choice.recomputes, "cut", SOLVER), choice.pages))
    candidates: list[tuple[Paged, Candidate]] = []
    for start, preferred in starts:
        for order in ORDERS:
            paged = page(instance.graph, start.recomputes, request.budget, paging.limits, order, preferred)
            if paged is not None:
                candidates.append((paged, start))
    best = min(candidates, key=lambda candidate: (candidate[0].time, len(candidate[0].pages)), default=None)
    if best is None and plain is None:
        raise failed or InfeasibleError(
            request.budget, base.peak, instance.floor, "offload-only", None, base.peak, struck=False, holder=""
        )
    if plain is not None:
        _compare(instance, plain, None if best is None else best[0], choice, progress)
        if best is None or best[0].time >= plain.time:
            progress("no pages: no schedule with them is faster")
            return proven(plain, bound)
    assert best is not None
    return _solution(instance, *best, bound)


def _worth(instance: StepInstance, paging: PagingLimits) -> bool:
    """Whether a relevant share of the peak can leave during forward."""
    return _movable(instance, paging) >= _WORTH * instance.baseline.peak


def _movable(instance: StepInstance, paging: PagingLimits) -> int:
    """Return the bytes that the fastest lane moves out during forward."""
    graph = instance.graph
    forward = sum(op.ns for op in graph.operations[: graph.backward_start])
    return int(max(graph.lanes[memory].out for memory in paging.limits) * forward / 1e9)


def _starts(
    instance: StepInstance,
    request: Request,
    paging: PagingLimits,
    policy: Policy,
    pool: CandidatePool,
    progress: Callable[[str], None],
) -> list[tuple[Candidate, frozenset[int]]]:
    """Schedules that exceed the budget and recompute less than it needs. The baseline comes first."""
    base = instance.baseline
    reach = min(base.peak - request.budget, _movable(instance, paging))
    large = len(instance.graph.operations) > _LARGE_STEP
    gap = max(request.gap, _START_GAP) if large else request.gap
    for share in _LARGER:
        larger = request.budget + int(share * reach)
        progress(f"solving recomputation within {size(larger)}; pages cover the rest")
        try:
            solve(instance, replace(request, budget=larger, effort=QUICK, gap=gap), policy, pool=pool)
        except InfeasibleError:
            continue
    over = [candidate for candidate in pool.candidates if candidate.order is None and candidate.peak > request.budget]
    stride = max(1, len(over) // _STARTS)
    return [(base, NOTHING), *((candidate, NOTHING) for candidate in over[::stride] if candidate.recomputes)]


def _choice(
    instance: StepInstance,
    request: Request,
    paging: PagingLimits,
    time_limit: float | None,
    progress: Callable[[str], None],
) -> CutChoice | None:
    """Return what the integer program at one cut recomputes and pages."""
    if not instance.has_backward:
        return None
    progress("choosing among keeping, recomputing and paging at the fullest operation")
    return best_choice(
        instance, request.budget, paging.limits, request.effort, time_limit=time_limit, progress=progress
    )


def _compare(
    instance: StepInstance,
    plain: Solution,
    best: Paged | None,
    choice: CutChoice | None,
    progress: Callable[[str], None],
) -> None:
    base = instance.baseline.time or 1
    paged = "no schedule fits" if best is None else f"{(best.time / base - 1) * 100:.2f}% more time"
    bound = "" if choice is None else f"; proven for both: {(choice.bound / base - 1) * 100:.2f}%"
    progress(f"recomputation only: {(plain.time / base - 1) * 100:.2f}% more time; with pages: {paged}{bound}")


def _solution(instance: StepInstance, paged: Paged, start: Candidate, bound: int) -> Solution:
    base = instance.baseline
    recomputed = [] if not paged.recomputes else start.strategy.split("+")
    solution = Solution(
        paged.recomputes,
        paged.peak,
        paged.time,
        base.peak,
        base.time,
        bound,
        0.0,
        "heuristic",
        "+".join([*recomputed, "page"]),
        start.solver,
        pages=paged.pages,
    )
    return proven(solution, bound)
