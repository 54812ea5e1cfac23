"""Every strategy on many tiny random steps, compared with the optimum; `auto` compared with the others at equal effort."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import msgspec
import pytest

from remate.errors import InfeasibleError, NotApplicableError
from remate.strategy import QUICK, Request, Solution, StepInstance, policy, solve
from remate.strategy.portfolio import AUTO
from remate.strategy.registry import strategy_names
from remate_runtime.flat_step import Graph
from remate_runtime.link import link, simulate

from .exact_optimum import ExactOptimum
from .strategy_graphs import random_graph, transformer
from .test_strategy_contract import blocks
from .tiny_steps import KINDS, tiny_step

SEEDS = 200
HEAVY = {
    "auto",
    "checkmate",
    "checkmate-approx",
    "flat",
    "flat-squeeze",
    "hierarchical",
    "hiremate",
    "moccasin",
    "recreate",
    "rockmate",
}
NAMES = ["auto", *(name for name in strategy_names() if name != "moccasin" or find_spec("ortools"))]
ORDERS = ("steps", "smallest")  # of what `auto` tries
TIGHT = (0.75, 0.5, 0.2)  # of the way from what is needed at least to what a step without recomputation takes


@cache
def step(seed: int) -> tuple[Graph, int, int | None]:
    """A step, a budget, and the least time within it; None if the budget is infeasible."""
    kind = (*KINDS, "dag")[seed % 7]
    graph = random_graph(seed, 6) if kind == "dag" else tiny_step(seed, 5, kind)
    about = StepInstance(graph)
    budget = about.floor + int(TIGHT[seed % 3] * (about.baseline.peak - about.floor))
    best = ExactOptimum(graph).fastest(budget)
    return graph, budget, None if best is None else best.time


def outcome(name: str, graph: Graph, budget: int) -> Solution | InfeasibleError | NotApplicableError:
    try:
        return solve(StepInstance(graph, blocks(graph, 2)), Request(budget, effort=QUICK), policy(name))
    except (InfeasibleError, NotApplicableError) as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_keeps_its_promises_on_many_steps(name: str) -> None:
    """All 200 steps between them: 25 each; of those that take long, 5."""
    every = 200 if name == "moccasin" else 40 if name in HEAVY else 8
    for number, seed in enumerate(range(NAMES.index(name) % every, SEEDS, every)):
        graph, budget, best = step(seed)
        result = outcome(name, graph, budget)
        if isinstance(result, Solution):
            timeline = simulate(link(graph, result.recomputes))
            assert (timeline.peak, timeline.time) == (result.peak, result.time), seed
            assert result.peak <= budget, seed
            assert best is not None, seed
            assert result.lower_bound <= best <= result.time, seed
            assert result.stopped_by != "optimal" or result.time == best, seed
            assert name != "exact" or result.time == best, seed
        elif isinstance(result, InfeasibleError):
            assert result.floor <= result.smallest, seed
            assert result.smallest > budget, seed
            assert best is None or name not in ("exact", "auto"), seed
        if number < 2:
            again = outcome(name, graph, budget)
            assert str(again) == str(result) if isinstance(result, Exception) else again == result


@pytest.mark.slow
@pytest.mark.parametrize("searched", [True, False])
def test_auto_finds_every_optimum(searched: bool) -> None:
    """searched: all states of a step may be looked at; else its integer programs and local searches are on its own.
    Each gets half of the steps."""
    kept = {
        name: tuple(s for s in getattr(AUTO, name) if searched or s.name not in ("exact", "states")) for name in ORDERS
    }
    auto = msgspec.structs.replace(AUTO, **kept)
    for seed in range(0 if searched else 1, SEEDS, 2):
        graph, budget, best = step(seed)
        try:
            solution = solve(StepInstance(graph, blocks(graph, 2)), Request(budget, effort=QUICK), auto).time
        except InfeasibleError:
            solution = None
        assert solution == best, seed


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "share"), [("layers", 0.85)])
def test_auto_is_worse_than_none(graph: str, share: float) -> None:
    by_name = {
        "random": lambda: random_graph(7, 20),
        "layers": lambda: transformer(2),
    }
    step = by_name[graph]()
    baseline = StepInstance(step).baseline
    budget = int(share * baseline.peak)
    entries = {name: outcome(name, step, budget) for name in NAMES}
    times = {name: entry.time for name, entry in entries.items() if isinstance(entry, Solution)}
    assert not times or times["auto"] - min(times.values()) <= Request(budget).gap * baseline.time, times


def test_beam_lets_nothing_go_that_the_backward_start_needs() -> None:
    """Nothing runs again between the last operation of forward and the forward/backward boundary."""
    graph, budget, best = step(15)
    result = outcome("beam", graph, budget)
    assert isinstance(result, Solution)
    assert result.peak <= budget
    assert result.time == best
