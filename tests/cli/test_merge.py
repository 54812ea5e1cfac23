"""`remate merge`: merges the decisions of two branches, and works as git's merge driver in a real repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import remate_runtime
from remate.schedule_tools.analysis import analyse, open_schedule
from remate.schedule_tools.check import findings
from remate.schedule_tools.figures import refreshed
from remate_runtime.format import BASELINE, Instance, Recompute, Schedule, encode, save

from .changes import change
from .test_rebind import MODEL

Remate = Callable[..., Any]
MERGE = ("merge", "base.json", "ours.json", "theirs.json")


def edited(schedule: Schedule, at: int, **fields: Any) -> Schedule:
    program = tuple(replace(instance, **fields) if k == at else instance for k, instance in enumerate(schedule.program))
    return refreshed(replace(schedule, program=program)).schedule


def plan_of(schedule: Schedule, at: int) -> str:
    """A plan for an instance that differs from its current one."""
    place: Instance = schedule.program[at]
    known = [BASELINE, *schedule.blocks[place.block].plans]
    return next(name for name in known if name != place.plan)


@pytest.fixture
def base(remate: Remate) -> Schedule:
    return remate_runtime.load("mlp.json")


@pytest.fixture
def merged(remate: Remate, base: Schedule) -> Callable[..., Any]:
    def run(ours: Schedule, theirs: Schedule) -> Any:
        for name, schedule in (("base", base), ("ours", ours), ("theirs", theirs)):
            save(schedule, f"{name}.json")
        return remate(*MERGE)

    return run


def true(path: str) -> bool:
    """Check that a file has no fault, except that it may exceed its budget."""
    return {fault.code for fault in findings(open_schedule(path), Path(path).read_text())} <= {"R080"}


def test_decisions_of_both_sides(base: Schedule, merged: Callable[..., Any]) -> None:
    ours = edited(base, 1, plan=plan_of(base, 1), note="ours")
    theirs = replace(edited(base, 3, plan=plan_of(base, 3)), note="theirs")
    outcome = merged(ours, theirs)
    assert outcome.status == 0
    assert "bytes over the budget: recompute more" in outcome.err
    schedule = remate_runtime.load("ours.json")
    assert (schedule.program[1], schedule.program[3], schedule.note) == (ours.program[1], theirs.program[3], "theirs")
    assert schedule.solve.stopped_by == "edited"
    assert true("ours.json")
    timeline = analyse(schedule).timeline
    assert (schedule.solve.peak, schedule.solve.time) == (timeline.peak, timeline.time)


def test_one_side_alone_is_taken_as_it_is(base: Schedule, merged: Callable[..., Any]) -> None:
    theirs = edited(base, 3, plan=plan_of(base, 3))
    for ours, other in ((base, theirs), (theirs, base), (theirs, theirs)):
        assert merged(ours, other).status == 0
        assert Path("ours.json").read_bytes() == encode(theirs)


def test_statements_are_merged_by_what_they_say(base: Schedule, remate: Remate) -> None:
    opened = analyse(base)
    place = opened.expanded.places[0]
    op = next(op.id for op in opened.graph.operations[: opened.graph.backward_start] if not op.view)
    there, ours, theirs = (
        Recompute((op,), opened.graph.operations[i].id, note=f"at {i}") for i in [*place.backward][:3]
    )
    save(refreshed(replace(base, statements=(there,))).schedule, "base.json")
    save(refreshed(replace(base, statements=(there, ours))).schedule, "ours.json")
    save(refreshed(replace(base, statements=(theirs, there))).schedule, "theirs.json")
    assert remate(*MERGE).status == 0
    assert remate_runtime.load("ours.json").statements == (theirs, there, ours)


def test_a_conflict_keeps_both_sides(base: Schedule, merged: Callable[..., Any], remate: Remate) -> None:
    ours = edited(base, 1, note="because of us")
    theirs = edited(edited(base, 1, note="because of them"), 3, plan=plan_of(base, 3))
    outcome = merged(ours, theirs)
    assert outcome.status == 1
    assert "1 conflict:" in outcome.err
    assert f'/program/"{base.program[1].id}"/note'.replace('"', "") in outcome.err.replace('"', "")
    text = Path("ours.json").read_text()
    lines = text.splitlines()
    assert sum(line.startswith(("<<<<<<< ours", "=======", ">>>>>>> theirs")) for line in lines) == 3
    assert "because of us" in text
    assert "because of them" in text
    assert "conflict" in remate("check", "ours.json").err
    start, middle, end = (lines.index(mark) for mark in ("<<<<<<< ours", "=======", ">>>>>>> theirs"))
    for chosen, note in ((lines[start + 1 : middle], "because of us"), (lines[middle + 1 : end], "because of them")):
        Path("chosen.json").write_text("\n".join([*lines[:start], *chosen, *lines[end + 1 :]]) + "\n")
        assert remate("fmt", "--figures", "chosen.json").status == 0
        schedule = remate_runtime.load("chosen.json")
        assert (schedule.program[1].note, schedule.program[3].plan) == (note, theirs.program[3].plan)
        assert true("chosen.json")


def test_a_removed_plan_that_the_other_side_changed_is_a_conflict(base: Schedule, merged: Callable[..., Any]) -> None:
    name = base.program[1].block
    block = base.blocks[name]
    plan = next(iter(block.plans))
    kept = tuple(replace(instance, plan=BASELINE) if instance.block == name else instance for instance in base.program)
    without = {k: v for k, v in block.plans.items() if k != plan}
    changed = {**block.plans, plan: tuple(replace(instance, note="mine") for instance in block.plans[plan])}
    ours, theirs = (
        refreshed(replace(base, blocks={**base.blocks, name: replace(block, plans=plans)}, program=program)).schedule
        for plans, program in ((without, kept), (changed, base.program))
    )
    outcome = merged(ours, theirs)
    assert outcome.status == 1
    assert "mine" in Path("ours.json").read_text()


def test_costs_of_both_sides_are_never_mixed(base: Schedule, merged: Callable[..., Any]) -> None:
    def measured(more: int, profile: str) -> Schedule:
        costs = {name: {op: ns + more for op, ns in block.items()} for name, block in base.costs.items()}
        return refreshed(replace(base, costs=costs, solve=replace(base.solve, profile=profile))).schedule

    ours, theirs = measured(1, "1" * 16), edited(measured(2, "2" * 16), 3, note="theirs")
    assert merged(ours, theirs).status == 0
    schedule = remate_runtime.load("ours.json")
    assert schedule.costs == ours.costs != theirs.costs
    assert schedule.solve.profile == "1" * 16
    assert schedule.program[3].note == "theirs"
    assert true("ours.json")


def test_a_bound_stays_only_where_it_was_proven(base: Schedule, merged: Callable[..., Any]) -> None:
    assert base.solve.lower_bound is not None
    bound = base.solve.lower_bound + 1
    proven = refreshed(replace(base, solve=replace(base.solve, lower_bound=bound))).schedule
    other = edited(base, 3, note="theirs")
    assert merged(proven, other).status == 0
    assert remate_runtime.load("ours.json").solve.lower_bound == bound
    larger = replace(other, solve=replace(other.solve, budget=other.solve.budget + 10**6, lower_bound=None, gap=None))
    assert merged(proven, larger).status == 0
    assert remate_runtime.load("ours.json").solve.lower_bound is None
    freed = replace(other, solve=replace(other.solve, gradients="consumed", lower_bound=None, gap=None))
    assert merged(proven, freed).status == 0
    assert remate_runtime.load("ours.json").solve.gradients == "consumed"
    assert remate_runtime.load("ours.json").solve.lower_bound is None


def test_what_cannot_be_merged_by_meaning_is_merged_as_text(base: Schedule, merged: Callable[..., Any]) -> None:
    save(base, "base.json")
    save(edited(base, 1, note="ours"), "ours.json")
    Path("theirs.json").write_text(Path("base.json").read_text().replace('"version": 1', '"version": 1,, '))
    from remate.cli import main

    assert main(MERGE) == 1
    assert '"note": "ours"' in Path("ours.json").read_text()
    assert '"version": 1,, ' in Path("ours.json").read_text()


class Repository:
    """A new git repository without settings from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        who = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self.environment = {**clean, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        self.git("init", "-q", "-b", "main")
        self.git("config", "merge.remate.driver", f"{sys.executable} -m remate merge %O %A %B -L %P")
        (folder / ".gitattributes").write_text("*.schedule.json merge=remate\n")

    def git(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def commit(self, said: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", said)


@pytest.mark.slow
def test_edited_on_two_branches_merged_rebound_and_replanned(remate: Remate) -> None:
    """A schedule in a repository, from plan to replan."""
    repository, path = Repository(Path.cwd()), "net.schedule.json"
    text = MODEL.replace("range(3)", "range(1)")
    Path("net.py").write_text(text)
    assert remate("plan", "net.py:build", "--budget", "70%", "-o", path, "--cost", "cpu", "--quiet").status == 0
    repository.commit("planned")
    first = remate_runtime.load(path)

    repository.git("switch", "-q", "-c", "edits")
    assert remate("edit", path, "--plan", f"layers.2={plan_of(first, 2)}", "-o", path).status == 0
    repository.commit("layer 2 has another plan")
    repository.git("switch", "-q", "main")
    assert remate("edit", path, "--plan", f"layers.4={plan_of(first, 4)}", "-o", path).status == 0
    change(path, ('"id": "layers.0", ', '"id": "layers.0", '), (f'"name": "{first.name}"', '"name": "renamed"'))
    repository.commit("layer 4, and a name")

    repository.git("merge", "-q", "--no-edit", "edits")
    schedule = remate_runtime.load(path)
    assert [schedule.program[at].plan for at in (2, 4)] == [plan_of(first, at) for at in (2, 4)]
    assert schedule.name == "renamed"
    assert true(path)

    Path("net.py").write_text(text.replace("self.layers", "self.h").replace("randn(32, 16)", "randn(40, 16)"))
    assert remate("check", path, "--model", "net.py:build").status == 3
    assert remate("rebind", path, "--model", "net.py:build").status in (0, 1)
    bound = remate_runtime.load(path)
    assert [instance.plan for instance in bound.program] == [instance.plan for instance in schedule.program]
    repository.commit("renamed a module, a larger batch")

    assert remate("replan", path, "--model", "net.py:build").status == 0
    assert remate("check", path, "--model", "net.py:build").status == 0
    again = remate_runtime.load(path)
    assert (again.name, again.solve.settings) == ("renamed", first.solve.settings)
    repository.commit("planned again")


@pytest.mark.slow
def test_a_conflict_in_a_repository(remate: Remate) -> None:
    repository, path = Repository(Path.cwd()), "mlp.schedule.json"
    base = remate_runtime.load("mlp.json")
    save(base, path)
    repository.commit("first")
    repository.git("switch", "-q", "-c", "other")
    save(edited(base, 1, note="theirs"), path)
    repository.commit("theirs")
    repository.git("switch", "-q", "main")
    save(edited(base, 1, note="ours"), path)
    repository.commit("ours")
    said = repository.git("merge", "--no-edit", "other", status=1)
    assert f"CONFLICT (content): Merge conflict in {path}" in said
    assert f"{path}: 1 conflict" in said
    assert Path(path).read_text().count("<<<<<<< ours") == 1
    assert repository.git("diff", "--name-only", "--diff-filter=U").strip() == path
