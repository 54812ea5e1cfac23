"""A schedule of 9,000 operations, in templates and written flat: every command works on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from remate.block_templates.folding import fold, fold_flat
from remate.partition.partitioning import partition
from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.edit import Editor
from remate.schedule_tools.steps import useful
from remate_runtime.flat_step.graph import FlatRecompute
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.link.linker import link

from ..planner.folding import schedule_of
from ..planner.synthetic import layers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["templates", "flat"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    step = partition(layers(420))
    graph = step.captured.graph
    recomputes = [
        FlatRecompute(op, part.backward[0])
        for part in step.parts[1:-1:2]
        for op in range(*part.forward)
        if not graph.operations[op].view
    ]
    recomputes.sort(key=lambda recompute: recompute.before)
    chosen = tuple(recompute for recompute, use in zip(recomputes, useful(link(graph, recomputes)), strict=True) if use)
    folded = fold(step.captured, chosen, step) if request.param == "templates" else fold_flat(step.captured, chosen)
    schedule = schedule_of(folded)
    schedule = replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))
    edited = Editor(analyse(schedule)).result().schedule
    file = tmp_path_factory.mktemp("large") / f"{request.param}.json"
    replace(edited, solve=replace(edited.solve, budget=edited.solve.peak)).save(str(file))
    return str(file)


@pytest.mark.parametrize(
    "command",
    [
        ["lint"],
        ["explain"],
        ["explain", "h.3.mlp.tanh"],
        ["edit", "--recompute", "h.3.mlp.tanh", "--before", "h.5.grad.neg", "--dry-run"],
        ["migrate", "--check"],
        ["diff"],
    ],
    ids=" ".join,
)
def test_command(path: str, command: list[str]) -> None:
    name, *rest = command
    if Path(path).stem == "flat":  # one instance, called model
        rest = [f"model.{word}" if word.startswith("h.") else word for word in rest]
    argv = [sys.executable, "-m", "remate", name, path, *([path] if name == "diff" else []), *rest]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        argv,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'runtime'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
