"""`remate run`: trains, measures, compares."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]


def without_numbers(text: str) -> str:
    return re.sub(r" {2,}", "  ", re.sub(r"-?\d[\d.,]* (?:[KM]iB|ns|us|ms|s)\b|-?\d+\.\d+%?", "N", text))


@pytest.mark.usefixtures("planned")
def test_text(remate: Remate, golden: Golden) -> None:
    outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "3")
    golden("run.txt", without_numbers(str(outcome)))
    assert outcome.status == 0


@pytest.mark.usefixtures("planned")
def test_budget_that_is_exceeded_is_a_finding(remate: Remate) -> None:
    text = Path("s.json").read_text()
    Path("s.json").write_text(re.sub(r'"budget": \d+', '"budget": 1000', text))
    outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "1")
    assert outcome.status == 1
    assert "exceeded by" in outcome.out
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--steps", "many"), ("--threads", "-1"), ("--lr", "fast")])
def test_wrong_numbers(remate: Remate, wrong: tuple[str, str]) -> None:
    assert remate("run", "s.json", "--model", "models.py:build", *wrong).status == 2


@pytest.mark.usefixtures("planned")
def test_both_sides_train_alike(remate: Remate) -> None:
    outcome = remate("run", "s.json", "--model", "models.py:with_keywords", "--steps", "4", "--lr", "0.5")
    assert outcome.status == 0
    assert "largest gradient difference: 0 (bitwise equal)" in outcome.out


@pytest.mark.usefixtures("planned")
def test_memory_that_runs_out(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from remate.measure import beside_eager as trial

    def full(*args: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nmore of it")

    monkeypatch.setattr(trial, "peak_bytes", full)
    outcome = remate("run", "s.json", "--model", "models.py:build")
    assert outcome.status == 1
    assert outcome.err.startswith(
        "error: training by the schedule runs out of memory: CUDA out of memory. Tried to allocate 3 GiB.\nhint: "
    )
