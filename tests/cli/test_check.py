"""`remate check`: valid files, faults with their places, promises that are not kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]


def edit(name: str, *changes: tuple[str, str]) -> None:
    text = Path(name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    Path(name).write_text(text, encoding="utf-8")


def test_fine(remate: Remate, golden: Golden) -> None:
    golden("check.txt", str(remate("check", "mlp.json")))
    assert remate("check", "mlp.json", "--quiet") == (0, "", "")


CASES: dict[str, list[tuple[str, str]]] = {
    "syntax": [('"version": 1,', '"version": 1,,')],
    "several": [('"recompute": ["addmm"]', '"recompute": ["adddm"]'), ('"plan": "recompute"', '"plan": "recomputes"')],
    "unknown-field": [('"name": "mlp"', '"title": "mlp"')],
    "newer": [('"version": 1', '"version": 2')],
    "feature": [('"version": 1,', '"version": 1,\n  "requires": ["paging"],')],
    "promises": [('"peak": 4718600', '"peak": 4718599'), ('"time": 1305000', '"time": 1305001')],
    "over-budget": [('"budget": 4720000', '"budget": 4000000')],
}


@pytest.mark.slow("syntax")
@pytest.mark.parametrize("case", CASES)
def test_faults(remate: Remate, golden: Golden, case: str) -> None:
    edit("mlp.json", *CASES[case])
    golden(f"check-{case}.txt", str(remate("check", "mlp.json")))


def test_missing_file_and_folder(remate: Remate) -> None:
    assert remate("check", "nowhere.json").status == 2
    assert remate("check", ".").status == 2


def test_deleted_recompute_is_legal_and_its_peak_is_found(remate: Remate) -> None:
    """Editing the plan changes only the figures, and `check` reports the new ones."""
    edit("mlp.json", ('"plan": "recompute"', '"plan": "baseline"'))
    outcome = remate("check", "mlp.json")
    assert outcome.status == 1
    assert "error[R081] at /solve/peak: peak is recorded as 4,718,600" in outcome.err


def test_schema_is_checked(remate: Remate) -> None:
    from remate.schedule_tools.schema_file import load_schema

    assert load_schema()["properties"].keys() >= json.loads(Path("mlp.json").read_text()).keys()


@pytest.mark.usefixtures("planned")
def test_the_peak_that_an_engine_predicts(remate: Remate) -> None:
    outcome = remate("check", "s.json", "--engine", "eager")
    assert outcome.status == 0
    own = re.search(r"^  peak ([\d.]+ \w+), within", outcome.out, re.MULTILINE)
    assert own
    assert f"  executed by eager: predicted peak {own[1]}, within the budget of" in outcome.out
    assert remate("check", "s.json", "--engine", "eager", "--quiet").out == ""


@pytest.mark.usefixtures("planned")
def test_an_engine_that_exceeds_the_budget_is_a_finding(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remate_runtime.applied.peak_by_engine", lambda schedule, engine, allowed, graphs: 1 << 40)
    outcome = remate("check", "s.json", "--engine", "compiled", "--quiet")
    assert outcome.status == 1
    assert "executed by compiled: predicted peak 1.00 TiB, over the budget of" in outcome.out


@pytest.mark.usefixtures("planned")
def test_engines_that_there_are_not(remate: Remate) -> None:
    outcome = remate("check", "s.json", "--engine", "swift")
    assert outcome.status
    assert "there is no engine 'swift'" in outcome.err
    assert remate("check", "s.json", "--engine", "eager", "--format", "json").status == 2
    outcome = remate("check", "s.json", "--engine", "eager", "--cuda-graphs")
    assert outcome.status
    assert "cuda_graphs=True is for models on CUDA, and this one is on cpu" in outcome.err
    assert "add --engine compiled" in remate("check", "s.json", "--cuda-graphs").err
    assert (
        "there is no engine 'swift'" in remate("run", "s.json", "--model", "models.py:build", "--engine", "swift").err
    )
