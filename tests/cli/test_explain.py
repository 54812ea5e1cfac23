"""`remate explain`: every kind of name, and the overview."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .changes import change

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]

NAMES = {
    "kept": "layers.4.addmm",
    "recompute": "layers.2.addmm",
    "value": "%layers.2.gelu",
    "view": "layers.2.t",
    "backward": "layers.2.grad.mm_x",
    "instance": "layers.4",
    "parameter": "layers.4.weight",
    "tangent": "%grad.loss",
    "output": "loss.mean",
    "unknown": "layer.4.addmm",
}


@pytest.mark.parametrize("case", NAMES)
def test_names(remate: Remate, golden: Golden, case: str) -> None:
    golden(f"explain-{case}.txt", str(remate("explain", "mlp.json", NAMES[case])))


def test_overview(remate: Remate, golden: Golden) -> None:
    golden("explain.txt", str(remate("explain", "mlp.json")))
    golden("explain-more.txt", str(remate("explain", "mlp.json", "--more", "1MB")))
    assert "would remove no recomputation" in remate("explain", "mlp.json", "--more", "1kB").out
    assert remate("explain", "mlp.json", "--more", "10%").status == 2


def test_what_keeping_gives_is_what_an_edit_gives(remate: Remate) -> None:
    report = json.loads(remate("explain", "mlp.json", "layers.2.addmm", "--format", "json").out)
    assert [c["what"] for c in report["choices"]] == ["as it is", "keep it"]
    remate("edit", "mlp.json", "--keep", "layers.2.addmm", "-o", "new.json")
    again = json.loads(remate("explain", "new.json", "layers.2.addmm", "--format", "json").out)
    for key in ("peak", "time"):
        assert report["choices"][1][key] == again["choices"][0][key]
        assert again["choices"][1][key] == report["choices"][0][key]


def test_what_more_memory_buys_is_simulated(remate: Remate) -> None:
    report = json.loads(remate("explain", "mlp.json", "--more", "1GiB", "--format", "json").out)["more"]
    assert report == {
        "extra": 1 << 30,
        "keep": [["layers.*.addmm", 4]],
        "peak": 6815752,
        "time": 1097000,
        "recomputes": 0,
        "everything": True,
    }


def test_closure_names_what_else_would_recompute(remate: Remate) -> None:
    """gelu reads addmm, which the plan recomputes only later. Recomputing gelu alone keeps addmm alive."""
    change("mlp.json", ('"%layers.5.grad.mm_x"}', '"%layers.5.grad.mm_x"}, "plan": "recompute"'))
    report = json.loads(remate("explain", "mlp.json", "layers.4.gelu", "--format", "json").out)
    assert report["choices"][-1]["what"] == "recompute it, and what it needs"
    assert report["choices"][-1]["operations"] == ["layers.4.addmm", "layers.4.gelu"]


def test_nothing_recomputes(remate: Remate) -> None:
    remate("edit", "mlp.json", "--keep", "layers.0", "--all")
    assert "nothing is recomputed" in remate("explain", "mlp.json").out
