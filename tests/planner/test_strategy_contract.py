"""The contract of every registered strategy and bound."""

from __future__ import annotations

from functools import cache

import pytest

from remate.errors import InfeasibleError, NotApplicableError, UnknownNameError
from remate.partition.hierarchy import BlockSpan
from remate.strategy import (
    BASELINE,
    QUICK,
    CandidatePool,
    Context,
    Deadline,
    Request,
    Solution,
    StepInstance,
    alone,
    lacking,
    policy,
    solve,
)
from remate.strategy.registry import bound, bound_names, strategy, strategy_names
from remate_runtime.flat_step import Graph
from remate_runtime.link import link, simulate

from .brute_force import fastest
from .strategy_graphs import forward_only, frozen_base, random_graph, transformer

GRAPHS = (("random", False), ("frozen", True), ("layers", True), ("forward", False))
SHARES = (0.9, 0.7)
SLOW = {"checkmate", "moccasin", "portfolio"}  # many budgets of one step take it long; its own tests are quick
# Steps of strategies that take long, and of the portfolio, which asks them.
SMALLER = {"random": "few", "layers": "layer", "frozen": "base"}
ON_SMALLER = ("checkmate", "exact", "hiremate", "moccasin", "portfolio")
POLICIES = ("auto", "portfolio")
# Of strategies that take long, a step that they solve, and one to which they do not apply.
FEWER = {"moccasin": ("layers", "forward"), "portfolio": ("random", "frozen", "forward")}
CASES = [
    pytest.param(name, *graph, marks=pytest.mark.slow if name in SLOW else ())
    for name in (*POLICIES, *strategy_names())
    for graph in GRAPHS
    if graph[0] in FEWER.get(name, (graph[0],))
]


def blocks(graph: Graph, count: int) -> tuple[BlockSpan, ...]:
    """A step divided into blocks of about equal length at arbitrary places."""
    backward_start, end = graph.backward_start, len(graph.operations)
    at = [round(n * backward_start / count) for n in range(count + 1)]
    back = [round(backward_start + n * (end - backward_start) / count) for n in range(count + 1)]
    return tuple(
        BlockSpan(f"b.{n}", "", "B", (at[n], at[n + 1]), (back[count - 1 - n], back[count - n])) for n in range(count)
    )


def instance(name: str, hierarchy: bool) -> StepInstance:
    graph = {
        "random": lambda: random_graph(101, 24),
        "frozen": lambda: frozen_base(4),
        "base": lambda: frozen_base(2),
        "few": lambda: random_graph(101, 14),
        "layers": lambda: transformer(2),
        "layer": lambda: transformer(1),
        "forward": lambda: forward_only(12),
    }[name]()
    return StepInstance(graph, blocks(graph, 4) if hierarchy else ())


def outcome(name: str, graph: str, hierarchy: bool, share: float) -> Solution | InfeasibleError | NotApplicableError:
    about = instance(graph, hierarchy)
    request = Request(int(share * about.baseline.peak), effort=QUICK)
    try:
        return solve(about, request, policy(name))
    except (InfeasibleError, NotApplicableError) as error:
        return error


@pytest.mark.slow(
    "frozen",
    "exact-layers",
    "hiremate-random",
    "auto-random",
    "hierarchical-layers",
    "checkmate-approx-random",
    "rockmate-layers",
)
@pytest.mark.parametrize(("name", "graph", "hierarchy"), CASES)
def test_a_strategy_keeps_its_promises(name: str, graph: str, hierarchy: bool) -> None:
    if name == "moccasin":
        pytest.importorskip("ortools")
    if name in ON_SMALLER:
        graph = SMALLER.get(graph, graph)
    about = instance(graph, hierarchy)
    lacks = None if name in POLICIES else lacking(about, strategy(name).needs)
    result: Solution | InfeasibleError | NotApplicableError | None = None
    for share in SHARES[1:] if name == "portfolio" else SHARES:
        result = outcome(name, graph, hierarchy, share)
        budget = int(share * about.baseline.peak)
        if isinstance(result, NotApplicableError):
            assert lacks is not None or "variables with quick effort" in str(result)
            assert name.removesuffix("-approx") in str(result)
        elif isinstance(result, InfeasibleError):
            honest(result, name, graph, hierarchy)
        else:
            assert lacks is None
            timeline = simulate(link(about.graph, result.recomputes))
            assert (timeline.peak, timeline.time) == (result.peak, result.time)
            assert result.peak <= budget
            assert about.baseline.time <= result.lower_bound <= result.time
            assert name in (*POLICIES, *result.strategy.split("+"))
            if name not in POLICIES:
                assert (result.strategy, result.solver) == (name, strategy(name).solver)
    again = outcome(name, graph, hierarchy, SHARES[-1])
    assert str(again) == str(result) if isinstance(result, Exception) else again == result


@pytest.mark.parametrize("name", ["auto", *strategy_names()])
def test_what_fits_as_it_is_stays_as_it_is(name: str) -> None:
    result = outcome(name, "layers", True, 1.0)
    assert isinstance(result, Solution)
    assert (result.strategy, result.solver, result.recomputes, result.stopped_by) == (BASELINE, "none", (), "optimal")


def honest(error: InfeasibleError, name: str, graph: str, hierarchy: bool) -> None:
    """The smallest peak that it reports is feasible, so is a larger one, and none is below the floor."""
    about = instance(graph, hierarchy)
    assert error.budget < error.smallest <= about.baseline.peak
    assert error.floor <= error.smallest
    assert (f"infeasible for {name}" in str(error)) == (name != "auto")
    for budget in {error.smallest, (error.smallest + about.baseline.peak) // 2}:
        assert solve(instance(graph, hierarchy), Request(budget, effort=QUICK), policy(name)).peak <= budget


@cache
def truth(seed: int) -> tuple[Graph, list[int], list[int | None]]:
    graph = random_graph(seed, 4)
    peak = simulate(link(graph)).peak
    budgets = [int(share * peak) for share in (0.95, 0.85, 0.75, 0.65)]
    return graph, budgets, fastest(graph, budgets)[0]


@pytest.mark.slow("cut", "cuts-1", "cuts-0", "passes-2")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", bound_names())
def test_no_schedule_beats_a_bound(name: str, seed: int) -> None:
    graph, budgets, best = truth(seed)
    about = StepInstance(graph)
    proven = []
    for budget, time in zip(budgets, best, strict=True):
        context = Context(Deadline(), about.baseline.time)
        context.best = about.judged((), BASELINE) if time is None else CandidatePool().best(0) or about.baseline
        proven.append(bound(name).prove(about, Request(budget), context))
        assert proven[-1] == bound(name).prove(StepInstance(graph), Request(budget), context)
        assert time is None or proven[-1] <= time
    feasible = [p for p, time in zip(proven, best, strict=True) if time is not None]
    assert feasible == sorted(feasible), "less memory never takes less time"


def test_what_a_strategy_needs_is_said() -> None:
    bare, forward = instance("layers", False), instance("forward", False)
    for about, name, word in ((bare, "rockmate", "hierarchy of blocks"), (forward, "flat", "backward operations")):
        with pytest.raises(NotApplicableError, match=word):
            solve(about, Request(int(0.8 * about.baseline.peak)), policy(name))


def test_a_step_without_backward_is_planned_all_the_same() -> None:
    about = instance("forward", False)
    solution = solve(about, Request(about.baseline.peak - 1))
    assert solution.peak < about.baseline.peak
    assert solution.solver == "none"


def test_names_that_stand_for_nothing() -> None:
    for ask in (policy, strategy, bound):
        with pytest.raises(UnknownNameError, match="hint: one of"):
            ask("best")


def test_a_strategy_alone_does_not_take_what_others_found() -> None:
    about, pool = instance("layers", False), CandidatePool()
    budget = int(0.7 * about.baseline.peak)
    solve(about, Request(budget), policy("flat"), pool=pool)
    solution = solve(about, Request(budget, gap=1.0), alone("greedy"), pool=pool)
    assert (solution.strategy, solution.solver) == ("greedy", "none")
