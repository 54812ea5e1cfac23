"""`remate lint`: each code is reported where it applies, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate.schedule_tools.lint import CODES

from .changes import change

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]

_END = '\n  ],\n  "costs"'
CASES: dict[str, list[tuple[str, str]]] = {
    "L001": [('"recompute": ["addmm"]', '"recompute": ["addmm", "gelu"]')],
    "L002": [
        (_END, '\n  ],\n  "statements": [{"recompute": ["layers.4.addmm"], "before": "layers.5.grad.t"}],\n  "costs"')
    ],
    "L003": [('"Loss": {', '"Loss": {"plans": {"spare": [{"recompute": ["mean"], "before": "grad.div"}]},')],
    "L004": [('"Loss": {', '"Spare": {"inputs": {"x": "f32[2]"}},\n    "Loss": {')],
    "L005": [('"budget": 4720000', '"budget": 5300000')],
    "L006": [('"baseline_time": 1097000', '"baseline_time": 1097001')],
    "L007": [
        ('"plans": {', '"plans": {"same": [{"recompute": ["addmm"], "before": "grad.gelu_backward", "note": "x"}],'),
        ('"plan": "recompute"', '"plan": "same"'),
    ],
    "L008": [('"recompute": ["addmm"]', '"recompute": ["addmm", "addmm"]')],
    "L009": [('{"recompute": ["addmm"]', '{"page": ["addmm"]}, {"recompute": ["addmm"]')],
    "L010": [
        ('{"recompute": ["addmm"]', '{"page": ["gelu"]}, {"recompute": ["addmm"]'),
        ('"costs": {', '"lanes": {"disk": {"out": 20000000000, "back": 20000000000}},\n  "costs": {'),
    ],
    "L011": [
        ('{"recompute": ["addmm"]', '{"page": ["gelu"]}, {"recompute": ["addmm"]'),
        ('"budget": 4720000', '"budget": 3000000'),
    ],
    "L012": [
        ('"version": 1,', '"version": 1,\n  "requires": ["split"],'),
        ('{"recompute": ["addmm"]', '{"split": ["gelu"], "into": 2}, {"recompute": ["addmm"]'),
    ],
}


def test_nothing(remate: Remate) -> None:
    assert remate("lint", "mlp.json") == (0, "mlp.json: nothing suspicious\n", "")
    assert remate("lint", "mlp.json", "--format", "github") == (0, "", "")
    assert json.loads(remate("lint", "mlp.json", "--format", "json").out) == {"file": "mlp.json", "warnings": []}


@pytest.mark.parametrize("code", CODES)
def test_codes(remate: Remate, golden: Golden, code: str) -> None:
    change("mlp.json", *CASES[code])
    outcome = remate("lint", "mlp.json")
    assert outcome.status == 1
    golden(f"lint-{code}.txt", str(outcome))
    report = {w["code"] for w in json.loads(remate("lint", "mlp.json", "--format", "json").out)["warnings"]}
    assert code in report
    beside = {"L008": {"L001"}, "L002": {"L005"}, "L010": {"L005"}}  # what such a file also has
    assert report <= {code, "L006"} | beside.get(code, set())


def test_annotations(remate: Remate, golden: Golden) -> None:
    change("mlp.json", *CASES["L003"])
    golden("lint-github.txt", str(remate("lint", "mlp.json", "--format", "github")))


def test_every_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "schema" / "lint.md").read_text(encoding="utf-8")
    sections = dict(line[3:].split(": ", 1) for line in page.splitlines() if line.startswith("## L"))
    assert sections == CODES


def test_a_faulty_file_is_an_error(remate: Remate) -> None:
    change("mlp.json", ('"recompute": ["addmm"]', '"recompute": ["adddm"]'))
    outcome = remate("lint", "mlp.json")
    assert outcome.status == 1
    assert "R041" in outcome.err


def test_the_point_that_l002_names_is_better(remate: Remate) -> None:
    change("mlp.json", *CASES["L002"])
    assert "recompute before layers.4.grad.gelu_backward" in remate("lint", "mlp.json").err
    change("mlp.json", ('"before": "layers.5.grad.t"', '"before": "layers.4.grad.gelu_backward"'))
    assert "L002" not in remate("lint", "mlp.json").err
