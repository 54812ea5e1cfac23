"""`remate report`, `remate trace`, and the measured curve that `remate run` writes for the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]


def measured(**changes: Any) -> None:
    """A curve for `mlp.json`."""
    fingerprint = json.loads(Path("mlp.json").read_text())["model"]["fingerprint"]
    about = {"format": "remate.memory-trace", "version": 1, "schedule": "mlp", "fingerprint": fingerprint}
    curve = {"device": "cpu", "backward_start": 5, "times": [0, 3, 9], "bytes": [0, 4096, 0]}
    Path("trace.json").write_text(json.dumps(about | curve | changes))


def test_page(remate: Remate) -> None:
    outcome = remate("report", "mlp.json", "-o", "page.html")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("wrote page.html, ")
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_page_with_everything(remate: Remate) -> None:
    measured()
    Path("more").mkdir()
    Path("more/broken.json").write_text("{")
    outcome = remate("report", "mlp.json", "-o", "page.html", "--trace", "trace.json", "--frontier", "more")
    assert outcome.status == 0
    assert outcome.out.endswith(", 1 schedule on the frontier\n")
    assert outcome.err.startswith("warning: broken.json left out of the frontier: ")
    text = Path("page.html").read_text()
    assert "Measured peak" in text
    assert "Other budgets" in text


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("other-step", {"fingerprint": "sha256:" + "0" * 64}),
        ("newer", {"version": 2}),
        ("other-format", {"format": "something"}),
        ("uneven", {"times": [0]}),
        ("backwards", {"times": [0, 9, 3]}),
        ("negative", {"bytes": [0, -1, 0]}),
        ("unknown-field", {"extra": 1}),
    ],
)
def test_trace_that_cannot_be_used(remate: Remate, golden: Golden, name: str, changes: dict[str, Any]) -> None:
    measured(**changes)
    golden(f"report-trace-{name}.txt", str(remate("report", "mlp.json", "-o", "page.html", "--trace", "trace.json")))
    assert not Path("page.html").exists()


def test_frontier_that_is_no_folder(remate: Remate) -> None:
    outcome = remate("report", "mlp.json", "-o", "page.html", "--frontier", "mlp.json")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == "error: mlp.json is not a folder\nhint: --frontier takes a folder of schedule files\n"


def test_output_that_cannot_be_written(remate: Remate) -> None:
    outcome = remate("report", "mlp.json", "-o", "nowhere/page.html")
    assert (outcome.status, outcome.err) == (
        2,
        "error: nowhere/page.html: No such file or directory\nhint: name a file in a folder that exists\n",
    )


def test_trace(remate: Remate) -> None:
    outcome = remate("trace", "mlp.json", "-o", "t.json", "--snapshot", "t.pickle")
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.partition(",")[0] for line in outcome.out.splitlines()] == ["wrote t.json", "wrote t.pickle"]
    assert json.loads(Path("t.json").read_text())["traceEvents"]


def test_trace_without_an_output(remate: Remate) -> None:
    outcome = remate("trace", "mlp.json")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == "error: nothing to write\nhint: give -o OUT.json, --snapshot OUT.pickle, or both\n"


@pytest.mark.usefixtures("planned")
def test_run_writes_what_report_reads(remate: Remate) -> None:
    command = ("run", "s.json", "--model", "models.py:build", "--steps", "1", "--memory-trace", "trace.json")
    outcome = remate(*command)
    assert outcome.status == 0
    assert outcome.out.endswith("wrote trace.json, memory over a step of the schedule\n")
    trace = json.loads(Path("trace.json").read_text())
    beyond = max(trace["bytes"]) - json.loads(Path("s.json").read_text())["solve"]["peak"]
    assert 0 <= beyond <= 64  # the loss that `run` makes of the outputs, which no schedule knows
    assert 0 < trace["backward_start"] < trace["times"][-1]
    assert remate("report", "s.json", "-o", "page.html", "--trace", "trace.json").status == 0
