"""`remate show`: its text and its plot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from remate.present.assumptions import assumption_lines
from remate.schedule_tools.analysis import held_at, open_schedule, pattern
from remate_runtime.format import Live, load
from remate_runtime.link.events import RecomputeRun, Run

Remate = Callable[..., Any]
DATA = Path(__file__).parent / "data"


def test_text(remate: Remate, golden: Callable[[str, str], None]) -> None:
    golden("show.txt", str(remate("show", "mlp.json")))


def test_missing_file(remate: Remate, golden: Callable[[str, str], None]) -> None:
    golden("show-missing.txt", str(remate("show", "nowhere.json")))


def test_plot(remate: Remate) -> None:
    """Both curves, drawn to scale: the baseline curve's highest point is above the schedule's, as their peaks are."""
    outcome = remate("show", "mlp.json", "--plot", "memory.svg")
    assert outcome.status == 0
    assert outcome.out.endswith("plot written to memory.svg\n")
    drawn = ElementTree.parse("memory.svg")
    paths = [
        path.get("d", "")
        for path in drawn.iter("{http://www.w3.org/2000/svg}path")
        if path.get("stroke-width") == "1.5"
    ]
    baseline, ours, budget = ([float(y) for y in re.findall(r" ([\d.]+)", path)] for path in paths if "L" in path)
    opened = open_schedule("mlp.json")
    zero = max(baseline)
    assert zero - min(ours) == pytest.approx(
        opened.timeline.peak * (zero - min(baseline)) / opened.baseline.peak, abs=0.2
    )
    assert budget[0] == budget[1] == pytest.approx(min(ours), abs=0.2)  # planned within a kilobyte of the budget
    texts = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"forward", "backward", "this schedule", "budget", "peak, 4.50 MiB"} <= texts


def test_plot_is_the_same_each_time(remate: Remate) -> None:
    for name in ("one.svg", "two.svg"):
        assert remate("show", "mlp.json", "--plot", name).status == 0
    assert Path("one.svg").read_bytes() == Path("two.svg").read_bytes()


def test_plot_of_another_format(remate: Remate) -> None:
    outcome = remate("show", "mlp.json", "--plot", "memory.doc")
    assert outcome.status == 2
    assert outcome.err == "error: memory.doc: plots are SVG files\nhint: --plot memory.svg\n"


def test_curve_is_the_simulated_memory() -> None:
    from remate_runtime.display import curve

    opened = open_schedule(str(DATA / "mlp.json"))
    result = curve(opened.linked, opened.timeline)
    assert max(result.memory) == opened.timeline.peak
    assert result.end == opened.timeline.time
    assert result.starts[opened.timeline.backward_start] == sum(
        opened.graph.operations[event.op].ns for event in opened.linked.forward if isinstance(event, Run | RecomputeRun)
    )


def test_storage_written_over_goes_by_its_latest_value() -> None:
    """In layers 0 to 3 `gelu` overwrites `addmm`, so the kept value is `gelu`."""
    opened = open_schedule(str(DATA / "mlp.json"))
    values = [opened.contents[a][-1][1] for a in held_at(opened, opened.timeline.backward_start)]
    names = {opened.graph.values[v].name for v in values if v is not None}
    assert "layers.0.gelu" in names
    assert "layers.0.addmm" not in names


def test_pattern_of_a_name() -> None:
    assert pattern("h.12.attn.view_2") == "h.*.attn.view_2"
    assert pattern("0.conv.1") == "*.conv.*"


@pytest.mark.slow
def test_needs_neither_torch_nor_a_solver() -> None:
    code = (
        "import sys; from remate.cli import main; "
        f"main(['show', {str(DATA / 'mlp.json')!r}]); main(['check', {str(DATA / 'mlp.json')!r}]); "
        "print(sorted({'torch', 'pyomo', 'highspy', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_the_file_reads_sets_and_pads() -> None:
    schedule = load(str(DATA / "mlp.json"))
    assert list(assumption_lines(schedule.model, 10)) == []
    live = {f"drop.{n}.p": Live(planned=0.1, min=0.0, below=1.0) for n in range(3)}
    outputs = {"returns": schedule.model.outputs, "attributes": {"moe.aux_loss": {"literal": None}}}
    model = replace(schedule.model, live=live, fill={"ids": 0, "labels": -100}, outputs=outputs)
    assert list(assumption_lines(model, 2)) == [
        "live attributes: drop.0.p at least 0.0 and below 1.0 (planned at 0.1), drop.1.p at least 0.0 and below 1.0 "
        "(planned at 0.1) and 1 more (--all)",
        "may be padded: ids with 0, labels with -100",
        "attributes that forward sets: moe.aux_loss",
    ]
    assert next(iter(assumption_lines(model, None))).count("planned at") == 3


def test_the_tree_of_parts_has_the_solver_and_the_recomputed_time_of_each(remate: Remate) -> None:
    options = ("--budget", "70%", "--cost", "cpu", "--effort", "quick", "--strategy", "hiremate")
    solvers = ("--solver", "leaf=greedy", "tree=graph")
    assert remate("plan", "models.py:build", *options, *solvers, "-o", "h.json").status == 0
    settings = load("h.json").solve.settings
    assert settings is not None
    assert settings.strategy == "hiremate[leaf=greedy,tree=graph]", "replan asks for the same"
    text = remate("show", "h.json").out
    head = text.index("part ")
    assert "whole step" in text[head:]
    assert "greedy" in text[head:]
    refused = remate("plan", "models.py:build", *options, "--solver", "leaf=oak", "-o", "i.json")
    assert refused.status != 0
    assert "there is no strategy 'oak'" in str(refused)
