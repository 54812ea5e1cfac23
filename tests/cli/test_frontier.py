"""`remate frontier` and `remate.frontier`, with costs that do not depend on the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate.budget import BudgetError
from remate.cli import exit_codes
from remate.errors import InfeasibleError
from remate.present.frontier_summary import file_name, parse_budgets

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
OPTIONS = ("--cost", "cpu", "--time-limit", "10", "--gap", "0.02")


def without_numbers(text: str) -> str:
    """Hide figures of the solver, which these tests do not check."""
    text = re.sub(r"budget-\d+\.json|[+-]?\d[\d.,]*", lambda match: match[0] if "json" in match[0] else "N", text)
    return re.sub(r" {2,}", "  ", text)


@pytest.mark.slow
def test_schedules_table_and_plot(remate: Remate, golden: Golden) -> None:
    outcome = remate("frontier", "models.py:build", "--budgets", "25%..100%", "--steps", "4", "-o", "out", *OPTIONS)
    golden("frontier.txt", without_numbers(str(outcome)))
    assert outcome.status == exit_codes.FINE
    drawn = {text.text for text in ElementTree.parse("out/frontier.svg").iter("{http://www.w3.org/2000/svg}text")}
    assert {"proven infeasible", "proven bound", "schedules"} <= drawn
    summary = json.loads(Path("out/frontier.json").read_text(encoding="utf-8"))
    assert summary["complete"]
    assert [point["requested"] for point in summary["points"]] == ["25%", "50%", "75%", "100%"]
    infeasible, *solved = summary["points"]
    assert set(infeasible) == {"requested", "budget"}
    assert infeasible["budget"] < summary["floor"] <= summary["smallest"]
    for point in solved:
        schedule = remate_runtime.load(f"out/{point['file']}")
        assert schedule.peak_bytes == point["peak"] <= point["budget"] == schedule.budget_bytes
        assert schedule.time_ns == point["time"] >= point["lower_bound"]
        assert remate("check", f"out/{point['file']}").status == 0
    assert [point["time"] for point in solved] == sorted((point["time"] for point in solved), reverse=True)
    assert [point["lower_bound"] for point in solved] == sorted((p["lower_bound"] for p in solved), reverse=True)


@pytest.mark.slow
def test_twice_gives_the_same_bytes(remate: Remate) -> None:
    for folder in ("one", "two"):
        command = ("frontier", "models.py:build", "--budgets", "60%,80%", "-o", folder, *OPTIONS, "--name", "same")
        assert remate(*command, "--no-plot", "--quiet") == (0, "", "")
    files = sorted(path.name for path in Path("one").iterdir())
    assert files == ["budget-060.json", "budget-080.json", "frontier.json", "frontier.txt"]
    assert all((Path("one") / name).read_bytes() == (Path("two") / name).read_bytes() for name in files)


def test_no_feasible_budget(remate: Remate) -> None:
    outcome = remate("frontier", "models.py:build", "--budgets", "1KiB", "-o", "out", *OPTIONS, "--no-plot")
    assert outcome.status == exit_codes.FINDINGS
    assert "infeasible: below the proven floor" in outcome.out
    assert not list(Path("out").glob("budget-*"))


def test_interrupted(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    from remate.api.frontier import Sweep

    solve = Sweep.solve
    calls: list[int] = []

    def interrupted(self: Sweep, budget: int, label: str = "") -> Any:
        calls.append(budget)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return solve(self, budget, label)

    monkeypatch.setattr(Sweep, "solve", interrupted)
    command = ("frontier", "models.py:build", "--budgets", "70%,80%,90%", "-o", "out", *OPTIONS, "--no-plot")
    outcome = remate(*command)
    assert outcome.status == exit_codes.INTERRUPTED
    assert "interrupted" in outcome.out
    assert [path.name for path in Path("out").glob("budget-*")] == ["budget-070.json"]


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        (("--budgets", "20%..4GiB"), "mixes a share and a size"),
        (("--budgets", "none"), "cannot be read"),
        (("--steps", "1"), "from 2 to 1000"),
        (("-o", "no/such/folder"), "cannot create a folder"),
        (("-o", "models.py"), "cannot create a folder"),
    ],
)
def test_wrong_arguments(remate: Remate, option: tuple[str, str], fault: str) -> None:
    outcome = remate("frontier", "models.py:build", "-o", "out", *OPTIONS, *option)
    assert outcome.status == exit_codes.USAGE
    assert fault in outcome.err


def test_strategy_is_checked_before_anything_is_captured(remate: Remate) -> None:
    outcome = remate("frontier", "models.py:build", "-o", "out", *OPTIONS, "--strategy", "magic")
    assert (outcome.status, Path("out").exists()) == (exit_codes.USAGE, False)
    assert "rotor" in outcome.err


def test_budgets() -> None:
    assert parse_budgets("20%..100%", 5) == ["20%", "40%", "60%", "80%", "100%"]
    assert parse_budgets("20%..30%, 4GiB", 3) == ["20%", "25%", "30%", "4GiB"]
    assert parse_budgets("1KiB..2KiB", 2) == ["1024", "2048"]
    assert [file_name(text) for text in ("5%", "62.5%", "4 GiB")] == [
        "budget-005.json",
        "budget-062.5.json",
        "budget-4GiB.json",
    ]
    with pytest.raises(BudgetError, match="over 1000"):
        parse_budgets(",".join(["1%..9%"] * 2), 600)


def test_function() -> None:
    model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(32, 32), nn.GELU())))
    schedules = remate.frontier(model, (torch.randn(256, 32),), budgets=["80%", "60%", "1%"], cost="cpu", gap=0.02)
    assert [schedule.peak_bytes <= schedule.budget_bytes for schedule in schedules] == [True, True]
    assert schedules[0].budget_bytes < schedules[1].budget_bytes
    assert schedules[0].time_ns >= schedules[1].time_ns
    with pytest.raises(InfeasibleError):
        remate.frontier(model, (torch.randn(256, 32),), budgets=["1%"], cost="cpu")
