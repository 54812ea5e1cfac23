"""The exit status of every command means what `remate --help` says: 0 fine, 1 findings, 2 usage, 3 stale, 4
unsupported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate.cli import COMMANDS, exit_codes

from .changes import change

Remate = Callable[..., Any]

_PLAN = ("models.py:build", "--cost", "cpu", "--time-limit", "5", "--quiet")
# every command on a file that it can work with; `FILE` is replaced
ON_FILE: dict[str, list[str]] = {
    "rebind": ["rebind", "FILE", "--model", "models.py:build", "-o", "rebound.json", "--cost", "cpu"],
    "replan": ["replan", "FILE", "--model", "models.py:build", "-o", "replanned.json", "--cost", "cpu"],
    "check": ["check", "FILE"],
    "fmt": ["fmt", "--check", "FILE"],
    "show": ["show", "FILE"],
    "run": ["run", "FILE", "--model", "models.py:build", "--steps", "1"],
    "diff": ["diff", "FILE", "FILE"],
    "merge": ["merge", "FILE", "FILE", "FILE"],
    "explain": ["explain", "FILE"],
    "lint": ["lint", "FILE"],
    "edit": ["edit", "FILE", "--keep", "layers.2.addmm", "--dry-run"],
    "migrate": ["migrate", "--check", "FILE"],
    "report": ["report", "FILE", "-o", "page.html"],
    "trace": ["trace", "FILE", "-o", "trace.json"],
}
WITHOUT_FILE = {"solve", "instance", "plan", "frontier", "fit", "strategies", "completion", "train"}


def on(name: str, command: str) -> list[str]:
    return [name if word == "FILE" else word for word in ON_FILE[command]]


def test_every_command_is_here() -> None:
    assert ON_FILE.keys() | WITHOUT_FILE == set(COMMANDS)


def test_help_says_what_each_means(remate: Remate) -> None:
    shown = remate("--help").out
    named = {name: value for name, value in vars(exit_codes).items() if name.isupper() and name != "INTERRUPTED"}
    assert sorted(named.values()) == [0, 1, 2, 3, 4]
    assert all(f"\n  {value}  " in shown for value in named.values())


@pytest.mark.slow("replan")
@pytest.mark.parametrize("command", [c for c in ON_FILE if c not in ("run", "rebind")])
def test_fine(remate: Remate, command: str) -> None:
    assert remate(*on("mlp.json", command)).status == exit_codes.FINE


@pytest.mark.parametrize("command", ON_FILE)
def test_a_faulty_file_is_a_finding(remate: Remate, command: str) -> None:
    change("mlp.json", ('"version": 1,', '"version": 1, "version": 1,'), to="bad.json")
    outcome = remate(*on("bad.json", command))
    assert outcome.status == exit_codes.FINDINGS
    assert "R003" in outcome.err


@pytest.mark.parametrize("command", ON_FILE)
def test_a_missing_file_is_usage(remate: Remate, command: str) -> None:
    assert remate(*on("nowhere.json", command)).status == exit_codes.USAGE


@pytest.mark.parametrize(
    ("command", "argv"),
    [(c, []) for c in COMMANDS if c != "strategies"]
    + [(c, ["mlp.json", "--no-such-option"]) for c in COMMANDS if c != "train"],  # what follows a script is its own
)
def test_wrong_arguments_are_usage(remate: Remate, command: str, argv: list[str]) -> None:
    assert remate(command, *argv).status == exit_codes.USAGE


@pytest.mark.parametrize("command", ON_FILE)
@pytest.mark.parametrize(
    "new", ['"version": 2,', '"version": 1,\n  "requires": ["paging"],'], ids=["version", "feature"]
)
def test_a_newer_file_is_unsupported(remate: Remate, command: str, new: str) -> None:
    change("mlp.json", ('"version": 1,', new), to="newer.json")
    assert remate(*on("newer.json", command)).status == exit_codes.UNSUPPORTED


@pytest.mark.slow("abacus-plan")
@pytest.mark.parametrize("command", ["plan", "frontier"])
@pytest.mark.parametrize("option", [("--strategy", "magic"), ("--cost", "abacus")], ids=lambda option: option[1])
def test_an_unknown_choice_is_usage(remate: Remate, command: str, option: tuple[str, str]) -> None:
    budget = ("--budget", "75%") if command == "plan" else ("--budgets", "75%")
    outcome = remate(command, *_PLAN, *budget, "-o", "out", *option)
    assert outcome.status == exit_codes.USAGE
    assert f"'{option[1]}'" in outcome.err
    assert not Path("out").exists()


def test_other_names_that_do_not_exist_are_usage(remate: Remate) -> None:
    assert remate("explain", "mlp.json", "layers.9").status == exit_codes.USAGE
    assert remate("check", "mlp.json", "--model", "models.py:nothing").status == exit_codes.USAGE
    assert remate("plan", *_PLAN, "--budget", "75%", "-o", "no/folder/s.json").status == exit_codes.USAGE
    assert remate("plan", "nowhere.py:build", "--budget", "75%", "-o", "s.json").status == exit_codes.USAGE


def test_a_step_that_somebody_edited_is_a_finding(remate: Remate) -> None:
    change("mlp.json", ('"op": "aten.gelu"', '"op": "aten.relu"'), to="edited.json")
    outcome = remate("check", "edited.json")
    assert outcome.status == exit_codes.FINDINGS
    assert "edited.json:8:20: error[R083]" in outcome.err


@pytest.mark.usefixtures("planned")
def test_stale(remate: Remate) -> None:
    stale = ("--model", "models.py:one_layer_more")
    assert remate("check", "s.json", *stale, "--quiet").status == exit_codes.STALE
    assert remate("check", "s.json", *stale, "--format", "github").status == exit_codes.STALE
    assert remate("run", "s.json", *stale).status == exit_codes.STALE


@pytest.mark.parametrize("command", ["check", "lint", "fmt"])
def test_of_several_files_the_worst_counts_and_none_is_passed_over(remate: Remate, command: str) -> None:
    change("mlp.json", ('"version": 1,', '"version": 2,'), to="newer.json")
    change("mlp.json", ('"recompute": ["addmm"]', '"recompute": ["ad dmm"]'), to="bad.json")
    check = ["--check"] if command == "fmt" else []
    outcome = remate(command, "bad.json", "newer.json", "nowhere.json", "mlp.json", *check)
    assert outcome.status == exit_codes.UNSUPPORTED
    assert all(code in outcome.err for code in ("bad.json:60:26: error[R014]", "error[R005]", "R000: 'nowhere.json'"))
    assert remate(command, "nowhere.json", "bad.json", *check).status == exit_codes.USAGE
    assert remate(command, "mlp.json", "mlp.json", *check).status == exit_codes.FINE


@pytest.mark.quick("lint")
@pytest.mark.parametrize(("command", "listed"), [("check", "faults"), ("lint", "warnings")])
def test_several_files_in_formats_for_programs(remate: Remate, command: str, listed: str) -> None:
    change("mlp.json", ('"peak": 4718600', '"peak": 4718599'), to="stale.json")
    array = json.loads(remate(command, "mlp.json", "stale.json", "--format", "json").out)
    assert [(item["file"], len(item[listed])) for item in array] == [("mlp.json", 0), ("stale.json", 1)]
    lines = remate(command, "mlp.json", "stale.json", "stale.json", "--format", "github").out.splitlines()
    assert len(lines) == 2
    assert all("file=stale.json,line=" in line for line in lines)
