"""On a CUDA device: plan and compare a schedule, train with it, and measure and draw its memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cuda


def test_from_plan_to_report(remate: Callable[..., Any]) -> None:
    build = "from models import build as on_cpu\n\ndef build():\n    model, *inputs = on_cpu()\n"
    moved = "    return model.cuda(), *(tuple(x.cuda() for x in args) for args in inputs)\n"
    Path("there.py").write_text(build + moved, encoding="utf-8")
    planned = remate("plan", "there.py:build", "--budget", "75%", "-o", "s.json", "--profile", "p.json")
    assert planned.status == 0, planned
    assert json.loads(Path("s.json").read_text(encoding="utf-8"))["model"]["device"] == "cuda"
    assert remate("check", "s.json", "--model", "there.py:build").status == 0
    # status 1 is a peak above the budget, which workspaces of libraries may make in so small a step
    run = remate("run", "s.json", "--model", "there.py:build", "--steps", "3", "--memory-trace", "t.json")
    assert run.status in (0, 1), run
    assert "largest gradient difference" in run.out
    report = remate("report", "s.json", "-o", "s.html", "--trace", "t.json")
    assert report.status == 0, report
