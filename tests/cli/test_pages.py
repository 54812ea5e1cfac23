"""Paged values in the output of show, diff, explain, fmt, check, merge, trace and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .changes import change

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
EDIT = ["--page", "layers.1.gelu", "--page", "layers.1.addmm", "--gone", "layers.3.gelu", "--back", "layers.3"]


@pytest.fixture
def paged(remate: Remate) -> None:
    assert remate("edit", "mlp.json", "--keep", "layers.1", "-o", "paged.json").status == 0
    assert remate("edit", "paged.json", *EDIT).status == 0
    change("paged.json", ('"costs": {', '"lanes": {"disk": {"out": 2000000000, "back": 3000000000}},\n  "costs": {'))
    assert remate("fmt", "--figures", "paged.json").status == 0


@pytest.mark.usefixtures("paged")
def test_texts(remate: Remate, golden: Golden) -> None:
    told = [remate("show", "paged.json"), remate("diff", "mlp.json", "paged.json")]
    told += [remate("explain", "paged.json", name) for name in ("layers.1.gelu", "layers.4.gelu")]
    golden("pages.txt", "\n".join(map(str, told)))


@pytest.mark.usefixtures("paged")
def test_a_file_with_pages_keeps_its_promises(remate: Remate) -> None:
    assert remate("check", "paged.json").status == 0
    text = Path("paged.json").read_text()
    assert '"requires": ["page"]' in text
    assert remate("fmt", "--check", "paged.json").status == 0
    change("paged.json", ('  "requires": ["page"],\n', ""))
    assert remate("check", "paged.json").status == 0
    assert remate("fmt", "paged.json").status == 0
    assert Path("paged.json").read_text() == text


@pytest.mark.usefixtures("paged")
def test_only_a_bound_that_counts_pages_covers_a_plan_with_pages(remate: Remate) -> None:
    planned = '"lower_bound": 1200000,\n    "settings": {"strategy": "mixed", "budget": "70%", "disk_budget": "1GiB"},'
    change("paged.json", ('"budget": 4720000,', f'"budget": 6820000,\n    {planned}'), to="bounded.json")
    assert remate("fmt", "--figures", "bounded.json").status == 0
    assert "proven bound, of recomputing and paging" in remate("show", "bounded.json").out
    assert remate("check", "bounded.json").status == 0
    change("bounded.json", ('"lower_bound": 1200000', '"lower_bound": 9200000'), to="refuted.json")
    assert "below the lower bound" in str(remate("check", "refuted.json"))
    change("bounded.json", ('"strategy": "mixed"', '"strategy": "weight-offloading"'), to="dropped.json")
    assert "proven bound" not in remate("show", "dropped.json").out
    assert "does not cover what this plan pages" in str(remate("fmt", "--figures", "dropped.json"))
    assert "lower_bound" not in Path("dropped.json").read_text()
    assert remate("edit", "bounded.json", "--page", "layers.0.weight").status == 0
    assert "lower_bound" not in Path("bounded.json").read_text()


@pytest.mark.usefixtures("paged")
def test_keeping_deletes_the_page(remate: Remate) -> None:
    assert remate("edit", "paged.json", "--keep", "layers.1.gelu").status == 0
    assert '{"page": ["layers.1.addmm"], "gone"' in Path("paged.json").read_text()
    assert remate("edit", "paged.json", "--keep", "layers.1").status == 0
    text = Path("paged.json").read_text()
    assert "requires" not in text
    assert '"page"' not in text


@pytest.mark.usefixtures("paged")
def test_merges_know_pages_by_what_they_page(remate: Remate) -> None:
    for name in ("base.json", "ours.json", "theirs.json"):
        Path(name).write_text(Path("paged.json").read_text())
    assert remate("edit", "ours.json", "--page", "layers.4.gelu").status == 0
    assert remate("edit", "theirs.json", "--page", "layers.0.gelu", "--gone", "layers.2.gelu").status == 0
    merged = remate("merge", "base.json", "ours.json", "theirs.json")
    assert merged.status == 0, merged
    text = Path("ours.json").read_text()
    assert all(f'{{"page": ["{name}' in text for name in ("layers.1.gelu", "layers.0.gelu")) or '"plan": "page' in text
    assert remate("check", "ours.json").status == 0


@pytest.mark.usefixtures("paged")
def test_the_trace_has_a_track_for_each_lane(remate: Remate) -> None:
    assert remate("trace", "paged.json", "-o", "paged.trace.json").status == 0
    events = json.loads(Path("paged.trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"paged out, disk", "paged back, disk"} <= names
    copies = [event for event in events if event.get("cat") == "page"]
    assert sorted({event["name"] for event in copies}) == ["layers.1.addmm", "layers.1.gelu"]
    assert len(copies) == 4
    assert any(event["name"] == "paged to the disk" for event in events)
    assert remate("report", "paged.json", "-o", "paged.html").status == 0
    page = Path("paged.html").read_text()
    assert "leaves and comes back" in page


def test_points_without_a_page_are_refused(remate: Remate) -> None:
    refused = remate("edit", "mlp.json", "--keep", "layers.1", "--gone", "layers.3.gelu")
    assert refused.status == 2
    assert "need --page" in refused.err


@pytest.mark.parametrize(
    ("name", "reason"),
    [("loss.mean", "output"), ("layers.1.t", "view"), ("layers.1.grad.mm_x", "backward produces it")],
)
def test_what_cannot_leave_is_refused_with_the_reason(remate: Remate, name: str, reason: str) -> None:
    refused = remate("edit", "mlp.json", "--page", name)
    assert refused.status == 1
    assert reason in refused.err
