"""Commands on a file with named sizes: at the planned size, at the size of --at, and over the range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import remate
from remate.cli import main
from remate_runtime.flat_step import expand
from remate_runtime.format import Dimension, Schedule, at_size, load
from tests.runtime.sized import Attention, B, T, sized
from tests.runtime.small import data, seeded

BUILD = """
from tests.runtime.sized import Attention
from tests.runtime.small import data, seeded
def build(): return seeded(Attention()), (data(5, 9, 6),)
def small(): return seeded(Attention()), (data(1, 9, 6),)
def other(): return seeded(Attention(0.2)), (data(5, 9, 6),)
"""


@pytest.fixture(scope="module")
def planned() -> Schedule:
    schedule = remate.plan(seeded(Attention()), (data(B, T, 6),), budget="70%", cost="cpu", effort="quick")
    return sized(schedule, b=Dimension(min=2, max=24, planned=B), t=Dimension(min=2, max=40, planned=T))


@pytest.fixture
def file(planned: Schedule, tmp_path: Path) -> Path:
    planned.save(str(tmp_path / "s.json"))
    (tmp_path / "model.py").write_text(BUILD)
    return tmp_path / "s.json"


def said(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main([str(item) for item in arguments]) == status
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.slow
def test_check_tells_what_fits(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "check", file)
    assert "sizes: b 2 to 24 (planned at 11), t 2 to 40 (planned at 13)" in text
    assert "over the budget at its largest size: 1.27 MiB at b=24, t=40" in text
    rows = [line.split() for line in text.splitlines() if "up to" in line]
    assert [row[2:5] for row in rows] == [["b=24", "at", "t=2"], ["b=11", "at", "t=13"], ["b=4", "at", "t=20"]]
    assert "none at t=40" in text


@pytest.mark.slow
def test_options_stand_between_arguments(file: Path, planned: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse on its own takes no argument behind an option where it may be left out, or where there may be
    several."""
    last = expand(at_size(planned)).graph.operations[-1].id
    wanted = said(capsys, "explain", file, last, "--at", "b=2")
    assert last in wanted
    assert (
        said(capsys, "explain", file, "--at", "b=2", last)
        == wanted
        == said(capsys, "explain", "--at", "b=2", file, last)
    )
    assert said(capsys, "diff", file, "--at", "b=2", file) == said(capsys, "diff", file, file, "--at", "b=2")
    assert said(capsys, "check", file, "--quiet", file) == said(capsys, "check", file, file, "--quiet")
    assert "required: S.json" in said(capsys, "explain", "--at", "b=2", status=2)


def test_check_tells_that_every_size_fits(file: Path, planned: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text().replace(f'"budget": {planned.solve.budget}', '"budget": 2000000')
    file.write_text(text)
    assert "within the budget at every size, up to 1.34 MiB at b=24, t=40" in said(capsys, "check", file)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        # legal at the planned size alone
        ('"x": "f32[b,t,6]"', '"x": "f32[11,t,6]"', "the block declares f32[11,40,6] (at b=24, t=40)"),
        (
            '"op": "aten.tril", "args": ["%ones"], "out": "bool[t,t]"',
            '"op": "aten.tril", "args": ["%ones"], "out": "bool[-t+26,t]"',
            "negative size",
        ),
    ],
)
def test_check_looks_at_the_ends_of_the_range(
    file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    assert told in said(capsys, "check", file, status=1)


def test_show_at_a_size(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sizes: b 2 to 24 (planned at 11)" in said(capsys, "show", file)
    text = said(capsys, "show", file, "--at", "b=20,t=31")
    assert "at b=20, t=31, with the times of the size that was planned" in text
    assert "f32[20,31,24]" in text
    assert "10 of 10 recomputations are left out: the budget does not need them here" in said(
        capsys, "show", file, "--at", "b=3"
    )
    text = said(capsys, "show", file, "--at", "b=24,t=40")
    assert "over the budget by 1.20 MiB" in text


@pytest.mark.quick("q=3")
@pytest.mark.parametrize(
    ("at", "told"),
    [("b=25", "b is 25, the schedule is for 2 to 24"), ("b=0", "b is 0, the"), ("q=3", "no size named 'q'")],
)
def test_a_size_that_the_schedule_lacks(file: Path, capsys: pytest.CaptureFixture[str], at: str, told: str) -> None:
    model = ("--model", f"{file.parent / 'model.py'}:build")
    for command, *more in (("show",), ("check",), ("explain",), ("diff", file), ("run", *model, "--quiet")):
        text = said(capsys, command, file, *more, "--at", at, status=2)
        assert told in text
        assert str(file) in text
        assert "hint: " in text


def test_check_at_a_size(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "check", file, "--at", "b=5")
    assert "at b=5, t=13: peak 45.1 KiB, within the budget of 68.8 KiB; baseline" in text
    text = said(capsys, "check", file, "--at", "b=24,t=40", "--quiet", status=1)
    assert text.startswith("  at b=24, t=40: peak 1.27 MiB, over the budget of 68.8 KiB; 10 recomputations, ")
    said(capsys, "check", file, "--at", "b=5", "--format", "json", status=2)


@pytest.mark.slow
def test_plan_tells_what_is_over_its_budget(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = f"{file.parent / 'model.py'}:build", file.parent / "out.json"
    requested = ("plan", model, "-o", out, "--cost", "cpu", "--dims", "x=b", "--budget")
    text = said(capsys, *requested[:-2], "x=b", "b=2..40", "--budget", "100%")
    assert "b  2 to 40, planned at 5" in text
    assert "note: over the budget at its largest size: " in text
    assert f" at b=40; remate check {out} lists the sizes within it" in text
    assert "over the budget" not in said(capsys, *requested, "100%", "--force")
    text = said(capsys, *requested, "1KiB", "--force", status=1)
    assert "the step at b=5 cannot be planned within 1.00 KiB" in text
    assert "or plan at a smaller size" in text


@pytest.mark.parametrize("text", ["b", "b=", "b=-1", "b=x", "b=1,b=2", "b=1;t=2", ""])
def test_what_is_no_size_is_refused(file: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert "argument --at" in said(capsys, "show", file, "--at", text, status=2)


def test_the_other_commands_at_a_size(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "explain", file, "--at", "b=5")
    assert text.startswith("at b=5, with the times of the size that was planned\n")
    assert "f32[5,2,13,13]" in text
    assert said(capsys, "explain", file).startswith("at b=11, t=13, as planned\n")
    said(capsys, "report", file, "-o", tmp_path / "page.html")
    assert "b 2 to 24 (planned at 11), t 2 to 40 (planned at 13)" in (tmp_path / "page.html").read_text()
    said(capsys, "report", file, "--at", "b=5", "-o", tmp_path / "page.html", "--force")
    assert "f32[5,2,13,13]" in (tmp_path / "page.html").read_text()
    said(capsys, "trace", file, "--at", "b=5", "-o", tmp_path / "trace.json")
    assert "nothing suspicious" in said(capsys, "lint", file)
    before = file.read_bytes()
    said(capsys, "fmt", "--figures", file)
    assert file.read_bytes() == before


def test_diff_of_sizes(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wider = file.read_text().replace('"max": 24, "planned": 11', '"max": 32, "planned": 12')
    (tmp_path / "wider.json").write_text(wider)
    text = said(capsys, "diff", file, tmp_path / "wider.json", status=1)
    assert [line.split()[0] for line in text.split("model\n")[1].split("\n\n")[0].splitlines()] == ["dims/b"]
    assert "graph" not in text
    assert "decisions: none differs" in said(capsys, "diff", file, tmp_path / "wider.json", "--at", "b=5", status=1)
    assert "the schedules are equal" in said(capsys, "diff", file, file, "--at", "b=5")


def test_diff_with_a_plan_of_one_size(
    file: Path, planned: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at_size(planned, {}).save(str(tmp_path / "plain.json"))
    assert "are equal" in said(capsys, "diff", file, tmp_path / "plain.json", "--at", f"b={B},t={T}")
    assert "dims/b" in said(capsys, "diff", file, tmp_path / "plain.json", status=1)
    assert "no size named 'b'" in said(
        capsys, "diff", tmp_path / "plain.json", tmp_path / "plain.json", "--at", "b=5", status=2
    )


def test_edits_stay_edits_of_all_sizes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load(str(file))
    (instance,) = before.program
    said(capsys, "edit", file, "--plan", f"{instance.id}=baseline", "-o", file, "--force")
    after = load(str(file))
    assert after.model.dims == before.model.dims
    assert after.program[0].plan == "baseline"
    assert after.solve.peak == before.solve.baseline_peak


def test_edit_narrows_a_range(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "edit", file, "--range", "b=4..16", "--range", f"t={T}..{T}")
    dims = load(file).model.dims
    assert (dims["b"].min, dims["b"].max, dims["t"].min, dims["t"].max) == (4, 16, T, T)
    assert "valid" in said(capsys, "check", file)
    assert "is not within 4 to 16" in said(capsys, "edit", file, "--range", "b=2..16", status=1)
    assert "is not within" in said(capsys, "edit", file, "--range", f"b={B + 1}..16", status=1)
    assert "there is no size 'c'" in said(capsys, "edit", file, "--range", "c=2..16", status=2)
    assert "NAME=LOW..HIGH" in said(capsys, "edit", file, "--range", "b=2", status=2)
    text = file.read_text().replace('"min": 4', '"min": 5')
    file.write_text(text)
    assert "remate edit S.json --range" in said(capsys, "check", file, status=1)


@pytest.mark.slow
def test_a_size_in_range_is_not_stale(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = file.parent / "model.py"
    assert "fits" in said(capsys, "check", file, "--model", f"{model}:build", "--step")
    assert "b is 1, the schedule is for 2 to 24" in said(capsys, "check", file, "--model", f"{model}:small", status=3)
    assert "attribute p was 0.1" in said(capsys, "check", file, "--model", f"{model}:other", status=3)


@pytest.mark.quick("at1")
@pytest.mark.parametrize("at", [(), ("--at", "b=11,t=12")])
def test_run_predicts_the_peak_of_the_size_that_runs(
    file: Path, capsys: pytest.CaptureFixture[str], at: tuple[str, ...]
) -> None:
    text = said(capsys, "run", file, "--model", f"{file.parent / 'model.py'}:build", "--steps", "1", "--quiet", *at)
    assert "own forward does not run" not in text
    assert f"predicted peak {'68.6' if at else '28.2'} KiB (measured +0.00%)" in text
    assert "0 (bitwise equal)" in text


def test_a_merge_keeps_the_sizes(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text()
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    ours.write_text(
        text.replace('"name": "Attention",\n  "model"', '"name": "Attention",\n  "note": "ours",\n  "model"', 1)
    )
    theirs.write_text(json.dumps(json.loads(text)))
    said(capsys, "merge", file, ours, theirs)
    assert load(str(ours)).model.dims == load(str(file)).model.dims
