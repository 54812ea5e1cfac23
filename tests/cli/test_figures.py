"""Derived figures: `fmt --figures` computes them, `check` names that command, and files after a merge."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .changes import change

Remate = Callable[..., Any]
FIGURES = ("peak", "time", "baseline_peak", "baseline_time")


def solve_of(name: str) -> dict[str, Any]:
    return json.loads(Path(name).read_text())["solve"]


@pytest.mark.parametrize("field", FIGURES)
def test_check_names_the_command_that_mends(remate: Remate, field: str) -> None:
    Path("a b.json").write_bytes(Path("mlp.json").read_bytes())
    right = solve_of("mlp.json")
    change("a b.json", (f'"{field}": {right[field]}', f'"{field}": {right[field] - 1}'))
    outcome = remate("check", "a b.json")
    assert outcome.status == 1
    assert "hint: `remate fmt --figures 'a b.json'` computes all figures again" in outcome.err
    checked = remate("fmt", "--figures", "--check", "a b.json")
    assert checked.status == 1
    assert checked.out.startswith(f"a b.json: figures are off\n  {field}: ")
    outcome = remate("fmt", "--figures", "a b.json")
    assert outcome.status == 0
    assert f"  {field}: {right[field] - 1:,} -> {right[field]:,}\n" in outcome.out
    assert remate("check", "a b.json").status == 0
    assert solve_of("a b.json")[field] == right[field]


def test_nothing_to_do(remate: Remate) -> None:
    before = Path("mlp.json").read_bytes()
    assert remate("fmt", "--figures", "mlp.json") == (0, "", "")
    assert Path("mlp.json").read_bytes() == before


def test_an_edit_needs_no_figures(remate: Remate) -> None:
    """After deleting a recomputation by hand, figures may be missing from the file."""
    text = Path("mlp.json").read_text()
    edited = re.sub(r', "plan": "recompute"', "", text, count=1)
    assert edited != text
    edited = re.sub(r' *"(peak|time|baseline_peak|baseline_time)": \d+,?\n', "", edited)
    Path("s.json").write_text(re.sub(r",(\s*\})", r"\1", edited))
    assert remate("check", "s.json").status == 1
    assert remate("fmt", "s.json").status == 1
    outcome = remate("fmt", "--figures", "s.json")
    assert outcome.status == 0
    solve = solve_of("s.json")
    assert solve["time"] < solve_of("mlp.json")["time"]
    assert f"warning: s.json: its peak is {solve['peak'] - solve['budget']:,} bytes over the budget" in outcome.err
    assert f'"budget": {solve["peak"]} if this is intended' in outcome.err
    over = remate("check", "s.json")
    assert over.status == 1
    assert (
        f'recompute more (`remate explain s.json` reports the largest values), or write "budget": {solve["peak"]}'
        in over.err
    )
    change("s.json", (f'"budget": {solve["budget"]}', f'"budget": {solve["peak"]}'))
    assert remate("check", "s.json").status == 0


def bounded(time: int, gap: float) -> None:
    """Write `s.json` with a bound."""
    change(
        "mlp.json",
        ('"lower_bound": 1302000', f'"lower_bound": {time}'),
        ('"gap": 0.002735', f'"gap": {gap}'),
        to="s.json",
    )


def test_a_bound_that_the_schedule_refutes_goes(remate: Remate) -> None:
    bounded(solve_of("mlp.json")["time"] + 1, 0.0)
    outcome = remate("check", "s.json")
    assert (
        "hint: the bound was proven for another budget or other costs: `remate fmt --figures` drops it" in outcome.err
    )
    outcome = remate("fmt", "--figures", "s.json")
    assert "  lower_bound: 1,305,001 -> none\n  gap: 0.0 -> none\n" in outcome.out
    assert "warning: s.json: it is faster than its bound" in outcome.err
    assert remate("check", "s.json").status == 0


def test_a_bound_for_other_costs_goes(remate: Remate) -> None:
    bounded(solve_of("mlp.json")["baseline_time"], 0.05)
    change("s.json", ('"grad.mm_x": 51000', '"grad.mm_x": 51500'))
    outcome = remate("fmt", "--figures", "s.json")
    assert "warning: s.json: the bound was proven for other costs of the operations" in outcome.err
    assert "lower_bound" not in solve_of("s.json")


def test_a_bound_that_holds_stays(remate: Remate) -> None:
    solve = solve_of("mlp.json")
    bounded(solve["baseline_time"], 0.5)
    assert "hint: `remate fmt --figures s.json` computes all figures again" in remate("check", "s.json").err
    assert remate("fmt", "--figures", "s.json").status == 0
    wanted = round((solve["time"] - solve["baseline_time"]) / solve["baseline_time"], 6)
    assert (solve_of("s.json")["lower_bound"], solve_of("s.json")["gap"]) == (solve["baseline_time"], wanted)
    assert remate("check", "s.json").status == 0


def test_what_is_broken_is_not_touched(remate: Remate) -> None:
    change(
        "mlp.json",
        ('"recompute": ["addmm"]', '"recompute": ["adddm"]'),
        ('"plan": "recompute"', '"plan": "recomputes"'),
        to="s.json",
    )
    before = Path("s.json").read_bytes()
    outcome = remate("fmt", "--figures", "s.json")
    assert outcome.status == 1
    assert re.search(r"s\.json:\d+:\d+: error\[R04", outcome.err)
    assert Path("s.json").read_bytes() == before


def git(*words: str) -> None:
    name = ("-c", "user.name=n", "-c", "user.email=e@x")
    subprocess.run(["git", *name, *words], check=words[0] != "merge", capture_output=True, cwd=Path.cwd())


def test_a_merge_that_is_not_resolved(remate: Remate) -> None:
    git("init", "-b", "main", ".")
    git("add", "mlp.json")
    git("commit", "-m", "one")
    git("checkout", "-b", "other")
    change("mlp.json", ('"peak": 4718600', '"peak": 1'), ('"note": "', '"note": "ours '))
    git("commit", "-am", "two")
    git("checkout", "main")
    change("mlp.json", ('"peak": 4718600', '"peak": 2'), ('"note": "', '"note": "theirs '))
    git("commit", "-am", "three")
    git("merge", "other")
    text = Path("mlp.json").read_text()
    line = text[: text.index("<<<<<<<")].count("\n") + 1
    for command in ("check", "fmt", "show", "lint"):
        outcome = remate(command, "mlp.json")
        assert outcome.status == 1
        assert (
            f"a conflict of a git merge is not resolved: <<<<<<< at line {line} (2 conflicts in the file)"
            in outcome.err
        )
        assert "hint: choose a side of each conflict, then `remate fmt --figures`" in outcome.err
    Path("mlp.json").write_text(re.sub(r"<<<<<<< .*\n([^=]*)=======\n[^>]*>>>>>>> .*\n", r"\1", text))
    assert remate("check", "mlp.json").status == 1
    assert remate("fmt", "--figures", "mlp.json").status == 0
    assert remate("check", "mlp.json").status == 0


@pytest.mark.parametrize("marker", ["=======", ">>>>>>> theirs", "||||||| base"])
def test_a_marker_that_was_left(remate: Remate, marker: str) -> None:
    change("mlp.json", ('"version": 1', f'"version": 1\n{marker}'))
    assert f"a conflict of a git merge is not resolved: {marker[:7]} at line " in remate("check", "mlp.json").err
