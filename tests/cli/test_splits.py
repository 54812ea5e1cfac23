"""Splits in the output of edit, show, check, fmt, diff, explain, lint, merge, trace and report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .changes import change
from .test_plan import without_numbers

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
SPLITS = Path(__file__).parents[2] / "schema/corpus/valid/splits.json"
OPERATION = "up~words.relu"


@pytest.fixture
def split(remate: Remate) -> None:
    shutil.copy(SPLITS, "splits.json")


@pytest.mark.usefixtures("split")
def test_texts(remate: Remate, golden: Golden) -> None:
    told = [remate("show", "splits.json"), remate("check", "splits.json"), remate("lint", "splits.json")]
    told += [remate("explain", "splits.json", name) for name in (OPERATION, f"{OPERATION}@1", "up~words")]
    golden("splits.txt", "\n".join(map(str, told)))


@pytest.mark.usefixtures("split")
def test_other_commands_read_it(remate: Remate) -> None:
    assert remate("fmt", "--check", "splits.json").status == 0
    assert remate("report", "splits.json", "-o", "report.html").status == 0
    assert "in 3 tiles along rows" in Path("report.html").read_text()
    assert remate("trace", "splits.json", "-o", "trace.json").status == 0
    assert "words.mm@2" in Path("trace.json").read_text()


@pytest.mark.usefixtures("split")
def test_edits(remate: Remate, golden: Golden) -> None:
    heads = ["up~words.up.addmm", "up~words.up.grad.mm"]
    told = [remate("edit", "splits.json", "--split", *heads, "--into", "5", "-o", "other.json", "--force")]
    told.append(remate("edit", "splits.json", "--split", OPERATION, "up~words.grad.threshold_backward", "--into", "3"))
    told.append(remate("edit", "splits.json", "--split", "up~words.nothing", "--into", "2"))
    told.append(remate("edit", "splits.json", "--split", OPERATION))
    told.append(remate("diff", "splits.json", "other.json"))
    golden("splits-edit.txt", "\n".join(map(str, told)))
    assert remate("check", "other.json").status == 0


@pytest.mark.usefixtures("split")
def test_features_follow_the_statements(remate: Remate) -> None:
    assert remate("edit", "splits.json", "--plan", "up~words=baseline", "-o", "plain.json").status == 0
    assert "requires" in Path("plain.json").read_text()  # the plan is still in the file
    change("splits.json", ('  "requires": ["split"],\n', ""))
    assert remate("check", "splits.json").status != 0


def test_the_figures_of_the_guide(remate: Remate) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/editing.md").read_text(encoding="utf-8")
    command = page.partition("## Split along rows")[2].partition("```sh\n")[2].partition("```")[0].replace("\\\n", " ")
    shutil.copy(Path(__file__).parents[2] / "examples/gpt2.json", "gpt2.json")
    words = command.split()
    assert words[:3] == ["remate", "edit", "gpt2.json"]
    effect = remate(*words[1:]).out.partition("effect")[2]
    assert "290 MiB  240 MiB" in effect
    assert "falls from 290 to 240 MiB" in page


@pytest.mark.slow
def test_planning_with_splits(remate: Remate, golden: Golden) -> None:
    command = ("plan", "models.py:language", "--cost", "cpu", "--budget", "30%", "-o", "s.json")
    refused = remate(*command)
    assert refused.status == 1
    assert "split='head' (--split head)" in refused.err
    planned = remate(*command, "--split", "head")
    golden("splits-plan.txt", without_numbers(str(planned)))
    assert remate("check", "s.json", "--model", "models.py:language").status == 0
    assert remate("run", "s.json", "--model", "models.py:language", "--steps", "2").status == 0
    assert "L012" not in remate("lint", "s.json").err  # lowers the peak
    before = Path("s.json").read_bytes()
    assert remate("replan", "s.json", "--model", "models.py:language").status == 0
    assert Path("s.json").read_bytes() == before
    assert remate("rebind", "s.json", "--model", "models.py:language", "-o", "bound.json").status == 0
    assert '"into"' in Path("bound.json").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_splits_for_the_smallest_peak(remate: Remate) -> None:
    done = remate("plan", "models.py:language", "--cost", "cpu", "--budget", "min", "--split", "head", "-o", "s.json")
    assert done.status == 0
    assert "wrote s.json" in done.out
    assert '"split"' in Path("s.json").read_text(encoding="utf-8")
