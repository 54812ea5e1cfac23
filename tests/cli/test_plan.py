"""`remate plan` with costs that do not depend on the machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remate_runtime

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
ROOFLINE = ("--cost", "cpu")


def without_numbers(text: str) -> str:
    """Hide figures of the solver, which these tests do not check."""
    text = re.sub(r"solved by \S+ \((none|highs \S+)\)", "solved by STRATEGY (SOLVER)", text)
    text = re.sub(r"stopped by \w+", "stopped by REASON", text)
    return re.sub(r" {2,}", "  ", re.sub(r"[+-]?\d[\d.,]*", "N", text))


def test_writes_a_schedule_that_checks(remate: Remate, golden: Golden) -> None:
    outcome = remate("plan", "models.py:build", "--budget", "75%", "-o", "s.json", *ROOFLINE, "--note", "for a test")
    golden("plan.txt", without_numbers(str(outcome)))
    assert remate("check", "s.json", "--model", "models.py:build").status == 0
    schedule = remate_runtime.load("s.json")
    assert (schedule.name, schedule.note) == ("s", "for a test")
    assert schedule.peak_bytes <= schedule.budget_bytes < schedule.baseline_peak_bytes


@pytest.mark.slow
def test_twice_gives_the_same_bytes(remate: Remate) -> None:
    for folder in ("one", "two"):
        Path(folder).mkdir()
        assert remate("plan", "models.py:build", "--budget", "75%", "-o", f"{folder}/s.json", *ROOFLINE).status == 0
    assert Path("one/s.json").read_bytes() == Path("two/s.json").read_bytes()


def test_options(remate: Remate) -> None:
    options = ("--name", "mine", "--time-limit", "20", "--gap", "0.1", "--quiet", "--device", "cpu")
    outcome = remate("plan", "models.py:with_keywords", "--budget", "4MiB", "-o", "s.json", *ROOFLINE, *options)
    assert outcome == (0, "", "")
    assert remate_runtime.load("s.json").name == "mine"
    assert remate_runtime.load("s.json").budget_bytes == 4 << 20


@pytest.mark.slow
def test_open_sizes(remate: Remate) -> None:
    options = ("--budget", "75%", "-o", "s.json", *ROOFLINE, "--dims")
    assert "512 planned" not in str(remate("plan", "models.py:build", *options, "none"))
    outcome = remate("plan", "models.py:build", *options, "input=n", "n=8..512/8", "--force")
    assert outcome.status == 0
    assert "8 to 512 in steps of 8, planned at 512" in str(outcome)
    assert "note:" not in str(outcome)
    (dim,) = remate_runtime.load("s.json").model.dims.values()
    assert (dim.min, dim.max, dim.multiple, dim.planned) == (8, 512, 8, 512)
    outcome = remate("plan", "models.py:wide_or_narrow", "--budget", "100%", *options[2:], "auto", "--force")
    assert "note: the step holds for b > 100 only (models.py:" in str(outcome)
    assert "b is from 101 to 512" in str(outcome)
    outcome = remate("plan", "models.py:build", *options, "inputs=n", "--force")
    assert outcome.status == 1
    assert "no argument 'inputs'" in str(outcome)


@pytest.mark.slow
def test_profile_is_made_and_reused(remate: Remate) -> None:
    for name in ("one.json", "two.json"):
        options = ("--budget", "80%", "-o", name, "--profile", "costs.json", "--name", "same")
        assert remate("plan", "models.py:build", *options).status == 0
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()


@pytest.mark.slow
def test_infeasible_budget_names_the_floor(remate: Remate, golden: Golden) -> None:
    outcome = remate("plan", "models.py:build", "--budget", "1KiB", "-o", "s.json", *ROOFLINE)
    golden("plan-infeasible.txt", without_numbers(str(outcome)))
    assert outcome.status == 1
    assert not Path("s.json").exists()


def test_model_that_cannot_be_captured(remate: Remate, golden: Golden) -> None:
    golden("plan-capture.txt", str(remate("plan", "models.py:data_dependent", "--budget", "60%", "-o", "s.json")))


@pytest.mark.slow("cost")
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("strategy", ("--strategy", "magic")),
        ("effort", ("--effort", "heroic")),
        ("cost", ("--cost", "abacus")),
        ("device", ("--device", "toaster")),
    ],
)
def test_unknown_choice(remate: Remate, golden: Golden, name: str, option: tuple[str, str]) -> None:
    outcome = remate("plan", "models.py:build", "--budget", "60%", "-o", "s.json", *ROOFLINE, *option)
    golden(f"plan-unknown-{name}.txt", re.sub("one of .*", "one of …", str(outcome)))
    assert outcome.status == 2


@pytest.mark.slow
def test_measured_costs_are_cached(remate: Remate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    plan = ("plan", "models.py:build", "--budget", "80%", "-o", "s.json")
    assert remate(*plan, "--no-cache").status == 0
    assert not Path("cache").exists()
    assert remate(*plan).status == 0
    first = Path("s.json").read_bytes()
    assert remate(*plan).status == 0
    assert Path("s.json").read_bytes() == first
    assert remate(*plan, "--measure-again").status == 0
    settings = remate_runtime.load("s.json").solve.settings
    assert settings is not None
    assert (settings.budget, settings.threads) == ("80%", 1)
    outcome = remate(*plan, "--measure-again", "--no-cache")
    assert outcome.status == 2
    assert "remove one of them" in outcome.err


def test_what_inputs_are_padded_with(remate: Remate) -> None:
    options = ("plan", "models.py:build", "--budget", "100%", "-o", "s.json", *ROOFLINE, "--force")
    outcome = remate(*options, "--fill", "input=-1.5")
    assert re.search(r"pad +input +with -1\.5\n", str(outcome))
    assert remate_runtime.load("s.json").model.fill == {"input": -1.5}
    assert "may be padded: input with -1.5\n" in str(remate("show", "s.json"))


@pytest.mark.quick("2", "words7")
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["input"], 2, "--fill input: not INPUT=NUMBER\nhint: write input_ids=0 labels=-100"),
        (["=1"], 2, "--fill =1: not INPUT=NUMBER"),
        (["input=nan"], 2, "--fill input=nan: 'nan' is not a number"),
        (["input=1e999"], 2, "--fill input=1e999: '1e999' is not a number"),
        (["input=1", "input=1"], 2, "--fill input=1: input is given twice"),
        (["inputs=1"], 1, "fill: 'inputs' is no input of the file\nhint: the inputs are input"),
        (["input=true"], 1, "fill: 'input' is a tensor of f32, which cannot hold True"),
        (["input=1", "--at", "0"], 1, "fill= is for whole models"),
    ],
)
def test_what_inputs_cannot_be_padded_with(remate: Remate, words: list[str], status: int, message: str) -> None:
    outcome = remate("plan", "models.py:build", "--budget", "100%", "-o", "s.json", *ROOFLINE, "--fill", *words)
    assert outcome.status == status
    assert message in outcome.err
    assert not Path("s.json").exists()


def test_parts_have_a_default_budget(remate: Remate) -> None:
    outcome = remate("plan", "models.py:build", "--at", "0", "-o", "part.json", *ROOFLINE)
    assert outcome.status == 0
    schedule = remate_runtime.load("part.json")
    assert schedule.peak_bytes <= schedule.budget_bytes
