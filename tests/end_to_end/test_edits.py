"""Whatever is edited in a planned schedule, it trains like eager, and `check` knows the peak that the allocator
sees."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from remate.cli import main
from remate.schedule_tools.analysis import analyse, open_schedule
from remate.schedule_tools.edit import Editor
from remate_runtime import apply
from remate_runtime.errors import ScheduleError
from remate_runtime.format.schedule import Schedule
from remate_runtime.format.writer import encode

from ..schedule_tools.hand_edits import by_hand
from .subjects import BUILD, PEAK_TOLERANCE, assert_eager, executed_peak, subject

ROUNDS = 3


def edited_by_hand(schedule: Schedule, draw: random.Random, times: int) -> Schedule:
    """Random edits of the lists; one that is refused is taken back, as a person would."""
    refused: list[ScheduleError] = []
    for _ in range(times):
        edited = by_hand(schedule, draw)
        try:
            analyse(edited)
        except ScheduleError as error:
            refused += error.faults
            continue
        if b'"to": "host"' not in encode(edited):  # a model on the CPU pages nothing there
            schedule = edited
    assert {fault.code for fault in refused} <= {"R042", "R043", "R045", "R047", "R048", "R049"}
    assert all(fault.where for fault in refused)
    return schedule


def edited_by_command(path: str, draw: random.Random, times: int) -> None:
    """Random calls of `remate edit`, some of which it refuses."""
    for _ in range(times):
        opened = open_schedule(path)
        graph = opened.graph
        able = [op.id for op in graph.operations[: graph.backward_start] if not op.view]
        place = draw.choice(opened.expanded.places)
        options = draw.choice(
            [
                ["--keep", draw.choice(able)],
                [
                    "--recompute",
                    draw.choice(able),
                    "--before",
                    draw.choice(graph.operations[graph.backward_start :]).id,
                ],
                ["--plan", f"{place.id}={draw.choice(['baseline', *place.block.plans])}"],
            ]
        )
        assert main(["edit", path, *options, *draw.choice([[], ["--all"]])]) in (0, 1, 2)


def recomputed_peak(path: str, capsys: pytest.CaptureFixture[str]) -> int:
    """What `remate check` says that the peak is, whatever the file says."""
    capsys.readouterr()
    main(["check", path, "--format", "json"])
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert {fault["code"] for fault in faults} <= {"R080", "R081"}
    wrong = [fault["message"] for fault in faults if fault["pointer"] == "/solve/peak"]
    return int(wrong[0].rpartition(" ")[2].replace(",", "")) if wrong else open_schedule(path).schedule.solve.peak


@pytest.mark.quick("1-layer_norm")
@pytest.mark.filterwarnings("ignore:schedule .* is over its budget")
@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("seed", [*range(ROUNDS), *(pytest.param(s, marks=pytest.mark.slow) for s in range(ROUNDS, 8))])
def test_edits(name: str, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of, draw, path = subject(name), random.Random(f"{name} {seed}"), str(tmp_path / "s.json")
    edited_by_hand(of.schedule, draw, draw.choice([1, 4, 20])).save(path)
    if draw.random() < 0.5:
        edited_by_command(path, draw, 3)
    planned = apply(of.fresh(), path)
    assert_eager(planned, of)
    executed = executed_peak(planned, of)
    assert executed <= recomputed_peak(path, capsys) <= executed + PEAK_TOLERANCE


@pytest.mark.slow("gpt")
@pytest.mark.parametrize("name", BUILD)
def test_the_tolerance_is_small_beside_what_a_plan_changes(name: str) -> None:
    """The planned file itself: it saves much more than the tolerance, so that the test above can tell plans apart."""
    solve = subject(name).schedule.solve
    assert solve.baseline_peak - solve.peak > 500 * PEAK_TOLERANCE
    kept = Editor(analyse(subject(name).schedule), everywhere=True)
    for place in kept.opened.expanded.places:
        if place.instance.plan != "baseline":
            kept.plan(place.id, "baseline")
    assert kept.result().timeline.peak > solve.peak
