"""Solves a bare instance by the published strategies, and checks the answer against the definition of its problem."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..budget import parse_budget
from ..errors import InfeasibleError, InstanceError, NotApplicableError
from ..strategy import AUTO, CandidatePool, Policy, Request, Solution, effort_named, lacking, policy
from ..strategy import solve as search
from ..strategy.registry import is_bound, strategy_names
from ..strategy.registry import strategy as strategy_named
from .check import check_sequence
from .form import BareInstance, checked
from .graph import BareStep, bare_step, sequence
from .poet import PoetGoal, energy_of, solve_by_poet
from .readers import from_tree, read
from .result import FORMAT, VERSION, BareResult, digest

Progress = Callable[[str], None]


def solve(
    instance: BareInstance | str | os.PathLike[str] | Mapping[str, Any],
    budget: str | int = "80%",
    strategy: str = "auto",
    *,
    keep_order: bool = False,
    effort: str = "normal",
    gap: float = 0.0,
    time_limit: float | None = None,
    progress: Progress | None = None,
    objective: str = "time",
    power: str = "",
    limit: float | None = None,
    disk_budget: str | int | None = None,
) -> BareResult:
    """Find a fast sequence that computes every node of a graph within a memory budget.

    Args:
        instance: A `BareInstance`, the path of a file that `remate solve` reads, or the result of a JSON parser or of
            `networkx.node_link_data`.
        budget: Bytes (`"4GiB"`, `4 << 30`) or a share of the peak of the graph's own order (`"80%"`).
        strategy: `"auto"`, or a name that `remate strategies` lists.
        keep_order: Whether first executions stay in the order of the graph.
        effort: `"quick"`, `"normal"` or `"thorough"`. It counts work, not seconds.
        gap: Stop when the sequence is proven to be this close to the fastest one, as a share of the baseline's time.
        time_limit: Seconds after which the best sequence so far is returned.
        progress: Called with one line of text at a time.
        objective: With strategy `"poet"`: `"time"`, or `"energy"` of the device `power`.
        power: With strategy `"poet"`: device of POET's figures of power and storage, `"a72"`, `"m4"` or `"m0"`. The
            graph's times are in ns then.
        limit: With strategy `"poet"`: most of the other figure (time or energy), as a multiple of the baseline's.
        disk_budget: With strategy `"poet"`: most bytes in storage. Default: no limit.

    Returns:
        The sequence with its peak, its time and a proven bound. It is checked against the definition of the problem.

    Raises:
        InstanceError: The graph cannot be read.
        BudgetError: The budget cannot be read.
        UnknownNameError: There is no such strategy or effort.
        NotApplicableError: The strategy needs something that the graph lacks.
        InfeasibleError: No sequence within the budget was found. The error has the smallest budget that works.
        OSError: The file cannot be read.

    Examples:
        >>> import remate
        >>> sizes = {"a": 4, "b": 9, "c": 4, "d": 1}
        >>> nodes = [{"id": name, "time": 1, "bytes": [size]} for name, size in sizes.items()]
        >>> edges = [["a", "b"], ["b", "c"], ["c", "d"], ["a", "d"]]
        >>> graph = {"format": "remate.instance", "version": 1, "nodes": nodes, "edges": edges}
        >>> remate.solve(graph, "100%").time
        4
    """
    goal = PoetGoal.of(strategy, objective, power, limit, disk_budget)
    if goal is not None:
        result = solve_by_poet(_instance(instance), budget, goal, effort_named(effort), gap, time_limit, progress)
        verify(_instance(instance), result)
        return result
    chosen, request = policy(strategy), effort_named(effort)
    bare = _instance(instance)
    step = bare_step(bare, orderable=not keep_order)
    if keep_order and chosen.name == AUTO.name and step.split is None:  # where annealing alone is often the best
        chosen = msgspec.structs.replace(chosen, each=(*chosen.each, "anneal"))
    base = step.whole.baseline
    requested = Request(parse_budget(budget).resolve(base.peak), gap, request)
    solution = _solved(step, requested, chosen, time_limit, progress)
    result = BareResult(
        FORMAT,
        VERSION,
        bare.name,
        digest(bare),
        requested.budget,
        solution.peak,
        solution.time,
        base.peak,
        base.time,
        solution.lower_bound,
        solution.strategy,
        solution.solver,
        solution.stopped_by,
        solution.order is not None,
        sequence(bare, solution.recomputes, solution.order or ()),
    )
    verify(bare, result)
    return result


def verify(bare: BareInstance, result: BareResult) -> None:
    """Check a result against the definition of the problem (`check_sequence`).

    Args:
        bare: The instance.
        result: The result.

    Raises:
        InstanceError: A figure of the result is false.
    """
    if result.digest != digest(bare):
        raise InstanceError("the result is of another instance\n  hint: solve this instance again")
    taken, base = check_sequence(bare, result.sequence, result.pages), check_sequence(bare, bare.order)
    stated = result.peak, result.time, result.baseline_peak, result.baseline_time
    true = taken.peak, taken.time, base.peak, base.time
    if stated != true:
        raise InstanceError(f"peak, time, baseline_peak and baseline_time are {true}, but the result has {stated}")
    if result.energy is not None and abs(result.energy - (energy := energy_of(bare, result))) > 1e-9 * energy:
        raise InstanceError(f"energy is {energy!r} J, the result says {result.energy!r}")
    if result.peak > result.budget:
        raise InstanceError(f"the peak of {result.peak} bytes is over the budget of {result.budget}")
    if not base.time <= result.lower_bound <= result.time:
        raise InstanceError(f"the bound {result.lower_bound} is not between {base.time} and {result.time}")
    if taken.order != bare.order and not result.reordered:
        raise InstanceError(
            "first executions have a different order than the instance's, but `reordered` of the result is false"
        )


def _solved(
    step: BareStep, request: Request, chosen: Policy, time_limit: float | None, progress: Progress | None
) -> Solution:
    """Solve a step.

    In an instance with a forward/backward boundary, strategies that need a backward solve a restricted problem, in
    which only the forward may run again. Their solutions are valid, their bounds are not.
    """
    if chosen.each:
        return _best_of(step, request, chosen, time_limit, progress)
    if chosen.reorders:
        return search(step.whole, request, chosen, time_limit=time_limit, progress=progress)
    alone = chosen.name in strategy_names()
    if step.split is None or step.exact:
        lacks = alone and lacking(step.problem, strategy_named(chosen.name).needs) is not None
        only = step.whole if lacks else step.problem
        return search(only, request, chosen, time_limit=time_limit, progress=progress)
    pool, failed = CandidatePool(), None
    solution: Solution | None = None
    narrow = msgspec.structs.replace(chosen, steps=tuple(s for s in chosen.steps if not is_bound(s.name)))
    if not alone or lacking(step.whole, strategy_named(chosen.name).needs) is not None:
        try:
            solution = search(step.split, request, narrow, pool=pool, time_limit=time_limit, progress=progress)
        except InfeasibleError as error:
            failed = error
        if alone and solution is not None:
            bound = step.whole.baseline.time
            gap = (solution.time - bound) / max(1, bound)
            return msgspec.structs.replace(solution, lower_bound=bound, gap=gap)
    if not alone or failed is None:
        try:
            return search(step.whole, request, chosen, pool=pool, time_limit=time_limit, progress=progress)
        except InfeasibleError as error:
            failed = error if failed is None or error.smallest <= failed.smallest else failed
    raise InfeasibleError(request.budget, failed.smallest, step.whole.floor, chosen.name, struck=failed.struck)


def _best_of(
    step: BareStep, request: Request, chosen: Policy, time_limit: float | None, progress: Progress | None
) -> Solution:
    """Return the best solution of a policy's strategies, reordered or not, then of the policy's own steps.

    Stops at a solution without recomputation, at the time limit, or if nothing fits in any order. Where that is known
    beforehand, the own order is tried first, because its smallest peak may already be that of any order.
    """
    solutions: list[Solution] = []
    failed: list[InfeasibleError] = []
    base, end = step.whole.baseline.time, None if time_limit is None else time.monotonic() + time_limit
    policies, least = (*map(policy, chosen.each), msgspec.structs.replace(chosen, each=())), step.whole.least_need
    for policy_ in policies if request.budget >= least else reversed(policies):
        limit = None if end is None else max(0.0, end - time.monotonic())
        try:
            solutions.append(_solved(step, request, policy_, limit, progress))
        except NotApplicableError:
            continue
        except InfeasibleError as error:
            failed.append(error)
            if error.smallest <= least:
                break
        if solutions and (solutions[-1].time == base or solutions[-1].stopped_by == "interrupted"):
            break
    if not solutions:
        smallest, struck = min(error.smallest for error in failed), any(error.struck for error in failed)
        raise InfeasibleError(request.budget, smallest, least, chosen.name, struck=struck)
    best = min(solutions, key=lambda solution: (solution.time, solution.order is not None, solution.peak))
    fixed = [solution.lower_bound for solution in solutions if solution.order is None]
    bound = base if best.order is not None else max(fixed)
    gap = (best.time - bound) / max(1, base)
    stopped = "optimal" if best.time == bound else "heuristic" if best.stopped_by == "optimal" else best.stopped_by
    return msgspec.structs.replace(best, lower_bound=bound, gap=gap, stopped_by=stopped)


def _instance(given: BareInstance | str | os.PathLike[str] | Mapping[str, Any]) -> BareInstance:
    if isinstance(given, BareInstance):
        return checked(given)
    return from_tree(given) if isinstance(given, Mapping) else read(given)
