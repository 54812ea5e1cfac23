"""A captured step as a bare instance: the same peak and time, and plans for one hold for the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remate
from remate.standalone_graphs import check_sequence, decode, encode, from_step, read
from remate.standalone_graphs.graph import bare_step, sequence
from remate.strategy import Request, StepInstance, policy, solve
from tests.planner.strategy_graphs import frozen_base, random_graph, transformer

GRAPHS = {"layers": lambda: transformer(2), "frozen": lambda: frozen_base(4), "random": lambda: random_graph(101, 24)}


@pytest.mark.slow("layers")
@pytest.mark.parametrize("name", GRAPHS)
def test_peak_and_time_are_those_of_the_step(name: str) -> None:
    graph = GRAPHS[name]()
    instance, bare = StepInstance(graph), from_step(graph, name)
    assert decode(encode(bare)) == bare
    taken = check_sequence(bare, bare.order)
    assert (taken.peak, taken.time) == (instance.baseline.peak, instance.baseline.time)
    step = bare_step(bare)
    assert step.exact
    assert step.problem is step.split


@pytest.mark.quick("0.7")
@pytest.mark.parametrize(("name", "share"), [("layers", 0.7), ("frozen", 0.9)])
def test_a_plan_of_the_step_is_one_of_the_instance(name: str, share: float) -> None:
    graph = GRAPHS[name]()
    instance, bare = StepInstance(graph), from_step(graph)
    budget = int(share * instance.baseline.peak)
    solution = solve(instance, Request(budget, 0.0), policy("auto"))
    again = remate.solve(bare, budget, "auto", keep_order=True)
    assert again.peak <= budget
    assert again.time == solution.time
    inserted = bare.order.index(bare.backward_start or "") if bare.backward_start else 0
    added = len(bare.order) - len(graph.operations)
    moved = tuple(type(r)(r.op, r.before + added if r.before >= inserted else r.before) for r in solution.recomputes)
    taken = check_sequence(bare, sequence(bare, moved))
    assert (taken.peak, taken.time) == (solution.peak, solution.time)


def test_the_command_writes_what_solve_reads(remate_command: Callable[..., Any], tmp_path: Path) -> None:
    assert remate_command("instance", "models.py:build", "--cost", "cpu", "-o", "i.json").status == 0
    bare = read(tmp_path / "i.json")
    assert bare.backward_start is not None
    assert remate_command("plan", "models.py:build", "--cost", "cpu", "--budget", "100%", "-o", "s.json").status == 0
    from remate_runtime.format import load

    planned = load(tmp_path / "s.json").solve
    taken = check_sequence(bare, bare.order)
    assert (taken.peak, taken.time) == (planned.baseline_peak, planned.baseline_time)
