"""`--gradients` on the command line: recorded, measured, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import remate_runtime
from remate_runtime.format import parse_type

Remate = Callable[..., Any]
PLAN = ("plan", "models.py:build", "-o", "s.json", "--cost", "cpu", "--quiet")


@pytest.mark.quick("consumed")
@pytest.mark.parametrize("kind", ["accumulated", "consumed"])
def test_planned_checked_run_and_planned_again(remate: Remate, kind: str) -> None:
    assert remate(*PLAN, "--budget", "80%", "--gradients", kind).status == 0
    solve = remate_runtime.load("s.json").solve
    assert solve.gradients == kind
    assert f"{kind} " in (checked := remate("check", "s.json")).out
    assert checked.status == 0
    ran = remate("run", "s.json", "--model", "models.py:build", "--steps", "1")
    assert ran.status == 0
    assert f"gradients {kind}: both peaks with gradients " in ran.out
    assert "largest gradient difference: 0 (bitwise equal)" in ran.out
    assert remate("replan", "s.json", "--model", "models.py:build", "--quiet").status == 0
    assert remate_runtime.load("s.json").solve == solve


@pytest.mark.slow
def test_accumulated_gradients_are_taken_off_the_device(remate: Remate) -> None:
    memory = ("--device-memory", "8MiB", "--optimizer", "sgd", "--force")
    budgets = {}
    for kind in ("retained", "accumulated", "consumed"):
        assert remate(*PLAN, *memory, "--gradients", kind).status == 0
        budgets[kind] = remate_runtime.load("s.json").budget_bytes
    parameters = sum(parse_type(t).nbytes for t in remate_runtime.load("s.json").model.parameters.values())
    assert budgets["retained"] == budgets["consumed"] == budgets["accumulated"] + parameters
    remate(*PLAN, *memory, "--gradients", "accumulated")
    shown = remate("show", "s.json", "--device-memory", "8MiB", "--optimizer", "sgd")
    assert "accumulated in .grad" in shown.out


def test_other_words_are_refused(remate: Remate) -> None:
    outcome = remate(*PLAN, "--budget", "80%", "--gradients", "freed")
    assert outcome.status == 2
    assert "retained" in outcome.err
