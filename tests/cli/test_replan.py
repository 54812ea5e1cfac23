"""`remate replan`: plan again with the same options for the current model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import remate_runtime
from remate_runtime.format import Schedule, save

Remate = Callable[..., Any]
REPLAN = ("replan", "s.json", "--model", "models.py:build")


@pytest.mark.usefixtures("planned")
def test_the_same_model_gives_the_same_bytes(remate: Remate) -> None:
    before = Path("s.json").read_bytes()
    outcome = remate(*REPLAN)
    assert outcome.status == 0
    assert "the schedule is unchanged" in outcome.out
    assert Path("s.json").read_bytes() == before


@pytest.mark.slow
def test_settings_are_requested_again(remate: Remate) -> None:
    options = ("--budget", "80%", "--cost", "cpu", "--strategy", "greedy", "--effort", "quick", "--gap", "0.05")
    more = ("--time-limit", "50", "--name", "mine", "--note", "why")
    assert remate("plan", "models.py:build", "-o", "s.json", *options, *more).status == 0
    before = remate_runtime.load("s.json")
    assert remate("replan", "s.json", "--model", "models.py:other_batch", "-o", "new.json").status == 0
    assert remate_runtime.load("s.json") == before
    after = remate_runtime.load("new.json")
    assert after.solve.settings == before.solve.settings
    assert (after.name, after.note, after.solve.cost) == ("mine", "why", "cpu")
    assert after.solve.budget != before.solve.budget
    assert after.solve.budget == int(0.8 * after.solve.baseline_peak)
    assert remate("check", "new.json", "--model", "models.py:other_batch").status == 0


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_the_hint_of_a_stale_schedule_works_as_it_is_printed(remate: Remate) -> None:
    stale = remate("check", "s.json", "--model", "models.py:other_activation")
    assert stale.status == 3
    hint = next(line for line in stale.err.splitlines() if line.startswith("hint: "))
    rebind, replan = hint.removeprefix("hint: ").split("; ")
    assert rebind.endswith(" transfers the plan without solving")
    assert replan.startswith("remate replan ")
    assert replan.endswith(" solves again")
    assert remate(*replan.removesuffix(" solves again").split()[1:]).status == 0
    assert remate("check", "s.json", "--model", "models.py:other_activation").status == 0
    github = remate("check", "s.json", "--model", "models.py:build", "--format", "json").out
    assert "remate replan s.json --model models.py:build" in github


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_notes_are_kept_and_lost_ones_said(remate: Remate) -> None:
    schedule = remate_runtime.load("s.json")
    name, block = next((n, b) for n, b in schedule.blocks.items() if b.forward)
    noted = tuple(replace(op, note=f"about {op.op}") for op in block.forward)
    program = (replace(schedule.program[0], note="first"), *schedule.program[1:])
    save(replace(schedule, blocks={**schedule.blocks, name: replace(block, forward=noted)}, program=program), "s.json")
    outcome = remate(*REPLAN)
    assert outcome.status == 0
    assert "warning" not in outcome.err
    assert notes(remate_runtime.load("s.json")) == [op.note for op in noted]
    assert remate_runtime.load("s.json").program[0].note == "first"
    outcome = remate("replan", "s.json", "--model", "models.py:other_activation")
    assert "warning: this note belonged to something that no longer exists: about aten.gelu" in outcome.err


def notes(schedule: Schedule) -> list[str]:
    return [op.note for block in schedule.blocks.values() for op in block.forward if op.note]


@pytest.mark.usefixtures("planned")
def test_a_file_without_settings_has_its_budget(remate: Remate) -> None:
    schedule = remate_runtime.load("s.json")
    save(replace(schedule, solve=replace(schedule.solve, settings=None)), "s.json")
    assert remate(*REPLAN).status == 0
    after = remate_runtime.load("s.json")
    assert after.solve.budget == schedule.solve.budget
    assert after.solve.settings is not None
    assert after.solve.settings.budget == str(schedule.solve.budget)


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_what_cannot_be_requested_again(remate: Remate) -> None:
    before = Path("s.json").read_bytes()
    text = before.decode()
    for old, new, said in (
        ('"cost": "cpu"', '"cost": "by hand"', "there are no costs of 'by hand'"),
        ('"budget": "75%"', '"budget": "75 apples"', "unknown unit 'apples'"),
        ('"budget": "75%"', '"budget": "75%", "strategy": "magic"', "magic"),
        ('"budget": "75%"', '"budget": "1KiB"', "cannot be planned within"),
    ):
        assert old in text
        Path("s.json").write_text(text.replace(old, new))
        outcome = remate(*REPLAN)
        assert outcome.status in (1, 2)
        assert said in outcome.err
        assert Path("s.json").read_text() == text.replace(old, new)
    Path("other.json").write_text("{}")
    assert remate("replan", "mlp.json", "--model", "models.py:build", "-o", "other.json").status == 2
