"""`tools.fuzz_models`: planned models train as in eager PyTorch, and a defect of the runtime is reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate_runtime.format import Page, Recompute, Schedule, Split, Statement
from remate_runtime.operator_calls import bindings
from tools.fuzz_models.__main__ import SUBJECTS, main
from tools.fuzz_models.case import Options
from tools.fuzz_models.comparison import differences
from tools.fuzz_models.edits import edited
from tools.fuzz_models.grammar import Grammar
from tools.fuzz_models.programs import Program, imported
from tools.fuzz_models.trial import Finding

QUICK = {"operations": (3, 2), "sizes": (10, 1), "live": (4, 1), "changes": (6, 2)}  # first seed, number of models
MANY = {"operations": 20, "sizes": 4, "live": 4, "changes": 8}
ENDS = {
    "operations": ("a = self.lin(x)", "return torch.tanh(a)"),
    "sizes": ("h = self.a(x.mean(1))*x.shape[0]", "return (h*h).mean()"),
    "live": ("h = self.a(x)*self.alpha", "return (h*h).mean()"),
    "changes": ("a = self.lin(x)*self.alpha", "return a.sin()"),
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_few_models(subject: str, tmp_path: Path) -> None:
    seed, count = map(str, QUICK[subject])
    assert main([subject, "--seed", seed, "--count", count, "--keep", str(tmp_path)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("how", ["", "--dtype float64", "--dtype bfloat16", "--autocast", "--engine arena"])
def test_many_models(subject: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = MANY[subject] // (1 if not how else 4)
    status = main([subject, "--seed", "1000", "--count", str(count), "--keep", str(tmp_path), *how.split()])
    assert status == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["sizes --autocast", "checked", "edited", "sizes edited --dtype float64", "engines", "threads"]
)
def test_other_ways(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["operations", "--seed", "1000", "--count", "4", "--keep", str(tmp_path), "--ways", *how.split()]
    assert main(run) == 0, capsys.readouterr().out


def test_edits_change_the_plan_and_no_result() -> None:
    """Some edits of each kind are legal, for a model whose rows can be split."""
    torch.manual_seed(0)
    x, model = torch.randn(8, 16), nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh())
    schedule = remate.plan(model, (x,), budget="100%", cost="cpu", effort="quick", progress=None)
    kinds = {
        type(statement)
        for seed in range(30)
        for statement in every_statement(edited(schedule, random.Random(seed), pages=True, splits=True))
    }
    assert kinds == {Recompute, Page, Split}


def every_statement(schedule: Schedule) -> list[Statement]:
    of_blocks = (plan for block in schedule.blocks.values() for plan in block.plans.values())
    return [*schedule.statements, *(statement for plan in of_blocks for statement in plan)]


def plant(monkeypatch: pytest.MonkeyPatch, product: Callable[..., Any]) -> None:
    """Let products of matrices, which gradients of weights are, run something else in planned steps."""
    true = bindings.python_binding
    monkeypatch.setattr(bindings, "python_binding", lambda name: product if name == "mm" else true(name))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_wrong_gradient_is_a_finding(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, source = SUBJECTS[subject](7, Options()), Program(subject, ENDS[subject]).source
    true = case.run(source)
    assert true.runs["equal"] > 3
    assert true.finding is None
    plant(monkeypatch, lambda left, right: torch.mm(left, right) * 1.5)
    finding = case.run(source).finding
    assert finding is not None
    assert (finding.kind, finding.what) == ("silent", "a difference")
    assert "weight differs by" in finding.detail


def test_a_finding_is_reported_with_a_small_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, lambda left, right: torch.mm(left, right) * 1.5)
    run = ["operations", "--seed", "14", "--count", "1", "--autocast"]
    assert main([*run, "--keep", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "silent: operations 14: loop 0: step 0: gradient of " in printed
    assert f"again: python -m tools.fuzz_models {' '.join(run)}\n" in printed
    whole, small = (tmp_path / f"operations_14{ending}.py" for ending in ("", "_small"))
    assert len(small.read_text().splitlines()) < len(whole.read_text().splitlines())
    assert main([*run, "--model", str(small)]) == 1  # the same finding with the small model
    monkeypatch.undo()
    assert main([*run, "--model", str(small)]) == 0


def test_an_exception_that_is_not_deliberate_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        raise IndexError("planted")

    plant(monkeypatch, fails)
    finding = SUBJECTS["operations"](7, Options()).run(Program("operations", ENDS["operations"]).source).finding
    assert finding == Finding("crash", "IndexError in running", "IndexError: planted")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_seed_gives_one_model(subject: str) -> None:
    first, again, other = (SUBJECTS[subject](seed, Options()).program for seed in (5, 5, 6))
    assert first == again != other
    with imported(first.source) as module:
        assert isinstance(module.M(), torch.nn.Module)


def test_differences() -> None:
    one, nan = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert differences({"a": one, "b": nan, "c": None}, {"a": one.clone(), "b": nan.clone(), "c": None}) == {}
    assert differences({"a": one, "b": one, "c": nan}, {"a": one, "b": one * 1.5, "c": nan * 3}) == {"b": 0.5, "c": 2.0}
    for got in (None, nan, one.double(), one.view(1, 3), one.clone().requires_grad_()):
        assert differences({"a": one}, {"a": got}) == {"a": float("inf")}
    assert differences({"a": one}, {}) == {"a": float("inf")}


def test_a_grammar_ends() -> None:
    grammar = Grammar("# comment\n[sum, 50% leaf]\n<sum>+<sum>\n[leaf]\n<v>\n1\n")
    drawn = {grammar.draw("sum", random.Random(seed), {"v": ["x", "y"]}) for seed in range(200)}
    assert drawn >= {"x+1", "y+x"}
    assert max(len(text) for text in drawn) == len("x+x+x+x")
