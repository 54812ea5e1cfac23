"""`tools.fuzz_models`: planned models train as in eager PyTorch, and a defect of the runtime is reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from remate_runtime.operator_calls import bindings
from tools.fuzz_models.__main__ import main
from tools.fuzz_models.case import Options
from tools.fuzz_models.comparison import largest_difference
from tools.fuzz_models.grammar import Grammar
from tools.fuzz_models.operations import generated
from tools.fuzz_models.programs import imported

QUICK = {"operations": 2}
MANY = {"operations": 30}


@pytest.mark.parametrize("subject", QUICK)
def test_a_few_models(subject: str, tmp_path: Path) -> None:
    assert main([subject, "--seed", "1", "--count", str(QUICK[subject]), "--keep", str(tmp_path)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("subject", MANY)
@pytest.mark.parametrize("how", ["", "--dtype float64", "--dtype bfloat16", "--autocast", "--engine arena"])
def test_many_models(subject: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = MANY[subject] // (1 if not how else 4)
    status = main([subject, "--seed", "1000", "--count", str(count), "--keep", str(tmp_path), *how.split()])
    assert status == 0, capsys.readouterr().out


def plant(monkeypatch: pytest.MonkeyPatch, product: Callable[..., Any]) -> None:
    """Let products of matrices, which gradients of weights are, run something else in planned steps."""
    true = bindings.python_binding
    monkeypatch.setattr(bindings, "python_binding", lambda name: product if name == "mm" else true(name))


@pytest.mark.parametrize("subject", QUICK)
def test_a_wrong_gradient_is_reported_with_a_small_model(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, lambda left, right: torch.mm(left, right) * 1.01)
    run = [subject, "--seed", "1", "--count", "1"]
    assert main([*run, "--keep", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"silent: {subject} 1: " in printed
    assert f"again: python -m tools.fuzz_models {' '.join(run)}\n" in printed
    whole, small = (tmp_path / f"{subject}_1{ending}.py" for ending in ("", "_small"))
    assert len(small.read_text().splitlines()) < len(whole.read_text().splitlines())
    assert main([*run, "--model", str(small)]) == 1  # the same finding with the small model
    monkeypatch.undo()
    assert main([*run, "--model", str(small)]) == 0


def test_an_exception_that_is_not_deliberate_is_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        raise IndexError("planted")

    plant(monkeypatch, fails)
    assert main(["operations", "--seed", "1", "--count", "1", "--keep", str(tmp_path)]) == 1
    assert "crash: operations 1: IndexError: planted\n" in capsys.readouterr().out


def test_a_seed_gives_one_model() -> None:
    first, again, other = (generated(seed, Options()).program for seed in (5, 5, 6))
    assert first == again != other
    with imported(first.source) as module:
        assert isinstance(module.M(), torch.nn.Module)


def test_differences() -> None:
    one, nan = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert (
        largest_difference({"a": one, "b": nan, "c": None}, {"a": one.clone(), "b": nan.clone(), "c": None}).size == 0
    )
    assert largest_difference({"a": one}, {"a": one * 1.5}) == (0.5, "a")
    for got in (None, nan, one.double(), one.view(1, 3), one.clone().requires_grad_()):
        assert largest_difference({"a": one}, {"a": got}).size == float("inf")
    assert largest_difference({"a": one}, {}).size == float("inf")


def test_a_grammar_ends() -> None:
    grammar = Grammar("# comment\n[sum, 50% leaf]\n<sum>+<sum>\n[leaf]\n<v>\n1\n")
    drawn = {grammar.draw("sum", random.Random(seed), {"v": ["x", "y"]}) for seed in range(200)}
    assert drawn >= {"x+1", "y+x"}
    assert max(len(text) for text in drawn) == len("x+x+x+x")
