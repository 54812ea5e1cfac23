"""The scripts of `examples/scripts`, as people write them: by `remate train` unchanged, and by `remate.auto` in one
line, they print and save what they do by Python, bit for bit. That line plans in two of them, and reads what `remate
train` planned in the others."""

from __future__ import annotations

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from remate.cli import main
from tools.documentation.results import text_tables

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "scripts"
NAMES = (
    "contrastive",
    "diffusion",
    "gan",
    "graph",
    "language_model",
    "lbfgs",
    "lora",
    "padded",
    "recurrent",
    "transfer",
    "vision",
    "vision_language",
)
PLANNED_IN_LINE = ("graph", "gan")
LINE = re.compile(r"# (.*remate\.auto\(.*)")
NEEDS = {"lora": "peft", "padded": "accelerate"}
# elsewhere estimates, which take no time; their workspaces are too large for these to recompute anything
COST: dict[str, str] = dict.fromkeys(("contrastive", "graph", "transfer", "vision_language"), "measured")
BUDGET = {"contrastive": "94%", "recurrent": "80%", "transfer": "84%"}  # elsewhere the knee, which recomputes
SMALLER = {  # most of the time goes into tracing all layers, or time steps, at several sizes
    "language_model": ("n_layer: int = 3", "n_layer: int = 1"),
    "lbfgs": ("arange(0, 17,", "arange(0, 9,"),
    "lora": ("num_hidden_layers=2", "num_hidden_layers=1"),
    "padded": ("n_layer=3", "n_layer=1"),
    "vision_language": ("depth=2", "depth=1"),
}

every = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name in NEEDS and find_spec(NEEDS[name]) is None, reason=f"there is no {NEEDS.get(name)}"
            ),
        )
        for name in NAMES
    ],
)


def saved(path: Path) -> tuple[list[Any], Any]:
    return pytree.tree_flatten(torch.load(path, weights_only=True))


def assert_same(path: Path, other: Path) -> None:
    (ours, form), (theirs, other_form) = saved(path), saved(other)
    assert form == other_form
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(ours, theirs, strict=True))


def by_python(path: Path, save: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [str(path), "--save", str(save)])
    capsys.readouterr()
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


def smaller(name: str) -> str:
    """The text of a script, its model with fewer layers."""
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    if name not in SMALLER:
        return text
    written, fewer = SMALLER[name]
    assert written in text
    return text.replace(written, fewer)


def test_all_scripts_are_tested() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(NAMES)


def test_all_scripts_are_in_the_table_of_figures() -> None:
    (rows,) = text_tables("scripts.txt")
    assert {row[0] for row in rows[1:] if row[0]} == set(NAMES)


@pytest.mark.slow
@every
def test_unchanged_and_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, changed = tmp_path / "unchanged" / f"{name}.py", tmp_path / f"{name}.py"
    text = smaller(name)
    script.parent.mkdir()
    script.write_text(text, encoding="utf-8")
    wanted = by_python(script, tmp_path / "eager.pt", monkeypatch, capsys)

    cost, file = COST.get(name, "cpu"), None if name in PLANNED_IN_LINE else str(tmp_path / "schedule.json")
    budget = BUDGET.get(name)
    options = ["--cost", cost, "--effort", "quick", *([] if file is None else ["--file", file])]
    options += [] if budget is None else ["--budget", budget]
    status = main(["train", *options, str(script), "--save", str(tmp_path / "train.pt")])
    said = capsys.readouterr()
    assert (status, said.out) == (0, wanted)
    assert re.search(r"remate: \w+, [1-9]\d* steps with a schedule", said.err)
    assert "was not planned" not in said.err
    peaks = re.findall(r"peak ([\d.]+ \w+) of ([\d.]+ \w+)", said.err)
    assert any(peak != baseline for peak, baseline in peaks), "nothing is recomputed"
    assert_same(tmp_path / "eager.pt", tmp_path / "train.pt")

    assert len(LINE.findall(text)) == 1
    line = (
        LINE.sub(r"\1", text)
        .replace("remate.auto(", "functools.partial(remate.auto, budget=BUDGET, cost=COST, effort='quick', file=FILE)(")
        .replace("BUDGET", repr(budget))
        .replace("COST", repr(cost))
        .replace("FILE", repr(file))
    )
    changed.write_text(f"import functools, remate\n{line}", encoding="utf-8")
    assert by_python(changed, tmp_path / "auto.pt", monkeypatch, capsys) == wanted
    assert_same(tmp_path / "eager.pt", tmp_path / "auto.pt")
