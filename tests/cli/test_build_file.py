"""`FILE.py:build`: which functions are accepted, and how each failure is reported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate.cli.build_file import load_target
from remate_runtime import load

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
FAILING = (
    "raises",
    "exits",
    "returns_a_model",
    "returns_four",
    "returns_no_model",
    "returns_a_tensor_as_args",
    "returns_a_list_as_kwargs",
    "not_a_function",
    "nowhere",
)


@pytest.mark.usefixtures("remate")
def test_function_and_its_default() -> None:
    assert len(load_target("models.py").args) == 1
    target = load_target("models.py:with_keywords")
    assert target.args == ()
    assert list(target.kwargs) == ["input"]


@pytest.mark.parametrize("name", FAILING)
def test_failure(remate: Remate, golden: Golden, name: str) -> None:
    golden(f"build-{name}.txt", str(remate("plan", f"models.py:{name}", "--budget", "60%", "-o", "s.json")))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("syntax", "import torch\ndef build(:\n"),
        ("import", "import torch\nimport no_such_module\n"),
        ("helper", "import helper\ndef build():\n    return helper.make()\n"),
    ],
)
def test_broken_file(remate: Remate, golden: Golden, name: str, text: str) -> None:
    Path("broken.py").write_text(text, encoding="utf-8")
    Path("helper.py").write_text("def make():\n    return 1 / 0\n", encoding="utf-8")
    sys.modules.pop("helper", None)
    golden(f"broken-{name}.txt", str(remate("plan", "broken.py:build", "--budget", "60%", "-o", "s.json")))


def test_missing_file(remate: Remate) -> None:
    outcome = remate("plan", "nowhere.py:build", "--budget", "60%", "-o", "s.json")
    assert outcome.status == 2
    assert outcome.err.startswith("error: nowhere.py: no such file\nhint: ")
    assert not Path("s.json").exists()


def test_output_folder_that_is_missing_is_told_before_anything_is_solved(remate: Remate) -> None:
    outcome = remate("plan", "models.py:raises", "--budget", "60%", "-o", "no/such/s.json")
    assert outcome == (
        2,
        "",
        "error: no/such/s.json: No such file or directory\nhint: name a file in a folder that exists\n",
    )


@pytest.mark.slow
def test_a_recorded_call_is_planned_checked_and_run(remate: Remate) -> None:
    assert remate(*"plan models.py:recorded --budget 60% --effort quick --quiet -o s.json".split()).status == 0
    planned = load("s.json").model
    assert (planned.autocast, planned.training) == ("bf16", True)
    assert remate("check", "s.json", "--model", "models.py:recorded", "--step")[:2] == (
        0,
        remate("check", "s.json")[1] + "s.json: fits models.py:recorded, and one step gives the same results\n",
    )
    assert remate("run", "s.json", "--model", "models.py:recorded", "--steps", "2")[0] == 0
    assert remate("replan", "s.json", "--model", "models.py:recorded")[1].startswith("the schedule is unchanged")
    assert remate("check", "s.json", "--model", "models.py:build")[0] == 3
