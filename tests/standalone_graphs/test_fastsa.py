"""Annealing over orders: what it counts is what the definition says, and an order can do what no recomputation of
another can."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

import remate
from remate.errors import InfeasibleError, NotApplicableError
from remate.standalone_graphs import BareInstance, BareNode, check_sequence
from remate.standalone_graphs.form import FORMAT, checked
from remate.standalone_graphs.graph import bare_step, sequence
from remate.strategy import CandidatePool, Request, StepInstance, policy, solve
from remate.strategy.local.sequence import Sequence
from tests.planner.strategy_graphs import random_graph

from .dags import random_dag


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_the_account_is_that_of_the_definition_after_any_changes(seed: int) -> None:
    """Without in-place execution, which it leaves to the simulator: moved, added, taken away."""
    bare, rng = random_dag(seed, 16), random.Random(seed)
    problem = bare_step(bare).whole.problem
    result = Sequence(problem)
    for _ in range(200):
        i = rng.choice(result.operations)
        slot = rng.randint(min(result.slots[i][0] + 1, len(result.at) - 1), len(result.at) - 1)
        if i not in problem.once and result.free(slot) and rng.random() < 0.5:
            result.insert(i, slot)
        elif len(result.slots[i]) > 1:
            result.remove(i, result.slots[i][-1])
        else:
            low, high = result.earliest(i), result.latest(i)
            to = rng.randint(low, max(low, high))
            if to <= high and result.free(to):
                result.move(i, result.slots[i][0], to)
    executed = [problem.graph.operations[i].id for i in result.at[result.at >= 0].tolist()]
    taken = check_sequence(bare, executed)
    assert (taken.peak, taken.time) == (int(result.live.max()), result.time)
    order, recomputes = result.result()
    assert check_sequence(bare, sequence(bare, recomputes, order)).peak <= taken.peak


def fans(count: int) -> BareInstance:
    """Large values, all made before each is read into a small one: another order needs only one of them at a time."""
    nodes = [BareNode(f"large{k}", 5, (100,)) for k in range(count)] + [
        BareNode(f"small{k}", 1, (1,)) for k in range(count)
    ]
    edges = [(f"large{k}", f"small{k}") for k in range(count)] + [(f"small{k}", "end") for k in range(count)]
    return checked(BareInstance(FORMAT, 1, (*nodes, BareNode("end", 1, (1,))), tuple(edges)))


def test_an_order_may_cost_nothing_where_recomputes_do() -> None:
    bare = fans(6)
    fixed, free = remate.solve(bare, "40%", keep_order=True), remate.solve(bare, "40%")
    assert fixed.time > fixed.baseline_time
    assert not fixed.reordered
    assert (free.time, free.stopped_by, free.reordered) == (free.baseline_time, "optimal", True)
    assert check_sequence(bare, free.sequence).order != bare.order


def early() -> BareInstance:
    """`x` has to go while `p` runs. Made again behind `y`, its large argument is still there, and goes before `q`; made
    again just before it is read, it needs that argument made again, too."""
    size = {"s": 100, "x": 50, "p": 60, "y": 1, "q": 70, "z": 1}
    nodes = tuple(BareNode(name, 50 if name == "s" else 1, (nbytes,)) for name, nbytes in size.items())
    return checked(BareInstance(FORMAT, 1, nodes, tuple((a, b) for a, b in ("sx", "sy", "py", "yq", "xz", "qz"))))


def test_a_recompute_stands_where_its_arguments_still_are() -> None:
    bare = early()
    with pytest.raises(InfeasibleError):
        remate.solve(bare, 165, "greedy")
    assert remate.solve(bare, 165, "anneal", effort="quick").sequence == ("s", "x", "p", "y", "x", "q", "z")


@pytest.mark.slow("6")
@pytest.mark.parametrize("seed", [0, 4, 6])
def test_auto_is_never_slower_than_what_reorders_or_anneals(seed: int) -> None:
    bare = random_dag(seed, 16)
    budget = int(0.85 * check_sequence(bare, bare.order).peak)
    results = [remate.solve(bare, budget, name, effort="quick") for name in ("auto", "fastsa", "anneal")]
    assert results[0].time == min(entry.time for entry in results)
    kept = remate.solve(bare, budget, effort="quick", keep_order=True)
    assert not kept.reordered
    assert kept.time <= results[2].time


def test_a_backward_that_runs_once_is_no_obstacle() -> None:
    bare = early()
    nodes = tuple(BareNode(n.id, n.time, n.bytes, recomputable=n.id not in "qz") for n in bare.nodes)
    solution = remate.solve(checked(replace(bare, nodes=nodes, backward_start="q")), 165, "anneal", effort="quick")
    assert solution.sequence == ("s", "x", "p", "y", "x", "q", "z")


def test_an_order_that_is_kept_refuses_what_reorders() -> None:
    with pytest.raises(NotApplicableError, match="without --keep-order"):
        remate.solve(fans(2), "60%", "fastsa", keep_order=True)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_deterministic_and_within_the_budget(seed: int) -> None:
    bare = random_dag(seed, 20)
    budget = int(0.9 * check_sequence(bare, bare.order).peak)
    solution = remate.solve(bare, budget, "fastsa", effort="quick")
    assert solution.peak <= budget
    assert solution == remate.solve(bare, budget, "fastsa", effort="quick")


def test_a_captured_step_keeps_its_order() -> None:
    with pytest.raises(NotApplicableError, match="a bare instance without --keep-order"):
        solve(StepInstance(random_graph(1, 12)), Request(1), policy("fastsa"))


def test_what_was_found_in_another_order_is_not_taken_for_the_own_one() -> None:
    instance, pool = bare_step(fans(6)).whole, CandidatePool()
    budget = int(0.4 * instance.baseline.peak)
    free = solve(instance, Request(budget, 0.0), policy("fastsa"), pool=pool)
    assert free.order is not None
    fixed = solve(instance, Request(budget, 0.0), policy("greedy"), pool=pool)
    assert fixed.order is None
    assert fixed.time > free.time
    assert solve(instance, Request(budget, 0.0), pool=pool).order is None


def test_auto_anneals_graphs_without_a_backward_in_their_order() -> None:
    """On random graphs annealing alone often finds what no other strategy finds."""
    bare, lines = random_dag(3, 40), list[str]()
    remate.solve(bare, "90%", keep_order=True, effort="quick", progress=lines.append)
    assert any("(anneal)" in line for line in lines)
