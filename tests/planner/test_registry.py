"""Strategies by name: loaded when requested, also those of other packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from remate.cli import main
from remate.errors import UnknownNameError
from remate.strategy import Request, StepInstance, alone, policy, registry, solve
from remate.strategy.registry import STRATEGIES, bound, bound_names, strategy, strategy_names

from .strategy_graphs import transformer

ROOT = Path(__file__).parents[2]
SOLVERS = ("pyomo", "highspy", "scipy")
FRESH = """
import sys
import remate.strategy
from remate.strategy.registry import strategy
from tests.planner.strategy_graphs import transformer
from remate.strategy import StepInstance, Request, alone, solve
name = {name!r}
assert strategy(name).solver == "none"
instance = StepInstance(transformer(6))
found = solve(instance, Request(int(0.9 * instance.baseline.peak)), alone(name))
assert found.peak < instance.baseline.peak, found
loaded = [m for m in {solvers!r} if m in sys.modules]
assert not loaded, loaded
"""
THIRD_PARTY = '''
from remate.strategy import Bound, Proposal, Strategy
from remate_runtime.flat_step import FlatRecompute


def one_recompute(instance, request, context):
    """Any one operation again, just before the backward operation that reads it last."""
    problem = instance.problem
    for f in problem.forward:
        for s in problem.writes[f]:
            late = [i for i in problem.readers[s] if i >= problem.backward_start]
            if late:
                yield Proposal((FlatRecompute(f, late[-1]),))


ONE = Strategy("one-recompute", "a single operation runs again", one_recompute, needs=frozenset({"backward"}))
WORK = Bound("work", "every operation once", lambda instance, request, context: instance.baseline.time)
WRONG = "not a strategy"
'''
ENTRY_POINTS = """[remate.strategies]
one-recompute = third_party_plan:ONE
broken = third_party_plan:MISSING
wrong = third_party_plan:WRONG

[remate.bounds]
work = third_party_plan:WORK
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package, installed as pip would do it."""
    (tmp_path / "third_party_plan.py").write_text(THIRD_PARTY, encoding="utf-8")
    info = tmp_path / "third_party_plan-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party-plan\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "third_party_plan", raising=False)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("third_party")
def test_strategies_and_bounds_of_other_packages() -> None:
    assert strategy_names()[-3:] == ("broken", "one-recompute", "wrong")
    assert "work" in bound_names()
    instance = StepInstance(transformer(2))
    budget = instance.baseline.peak - 1
    solution = solve(instance, Request(budget), policy("one-recompute"))
    assert (solution.strategy, solution.solver, len(solution.recomputes)) == ("one-recompute", "none", 1)
    assert solution.peak <= budget
    proven = solve(instance, Request(budget), alone("one-recompute", "work"))
    assert proven.lower_bound == instance.baseline.time
    assert bound("work").name == "work"


@pytest.mark.usefixtures("third_party")
def test_what_is_wrong_with_another_package_is_said() -> None:
    with pytest.raises(UnknownNameError, match="'broken' of third_party_plan:MISSING cannot be loaded: AttributeError"):
        strategy("broken")
    with pytest.raises(UnknownNameError, match="is a str, not a Strategy"):
        policy("wrong")


def test_a_package_that_is_installed_later_is_seen_and_metadata_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    before, reads = strategy_names(), []
    monkeypatch.setattr(registry, "entry_points", lambda group: reads.append(group) or entry_points(group=group))
    assert strategy_names() == before
    assert reads == []
    info = tmp_path / "later-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[remate.strategies]\nlater = later:LATER\n", encoding="utf-8")
    importlib.invalidate_caches()
    assert strategy_names() == strategy_names() == (*before, "later")
    assert reads == ["remate.strategies"]


def test_names_are_those_of_the_table() -> None:
    for name in STRATEGIES:
        assert strategy(name).name == name
        assert strategy(name).summary
    for name in bound_names():
        assert bound(name).name == name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greedy", "recreate", "chen-sqrt", "rotor"])
def test_local_search_loads_no_solver(name: str) -> None:
    text = FRESH.format(name=name, solvers=SOLVERS)
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == 0, process.stderr


def test_the_command_prints_what_auto_tries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies"]) == 0
    tried = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("auto tries"))
    assert "hierarchical" in tried
