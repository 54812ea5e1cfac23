"""`remate run`: trains, measures, compares."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]


def without_numbers(text: str) -> str:
    return re.sub(r" {2,}", "  ", re.sub(r"-?\d[\d.,]* (?:[KM]iB|ns|us|ms|s)\b|-?\d+\.\d+%?", "N", text))


@pytest.mark.usefixtures("planned")
def test_text(remate: Remate, golden: Golden) -> None:
    outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "3")
    golden("run.txt", without_numbers(str(outcome)))
    assert outcome.status == 0


@pytest.mark.usefixtures("planned")
def test_budget_that_is_exceeded_is_a_finding(remate: Remate) -> None:
    text = Path("s.json").read_text()
    Path("s.json").write_text(re.sub(r'"budget": \d+', '"budget": 1000', text))
    outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "1")
    assert outcome.status == 1
    assert "exceeded by" in outcome.out
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--steps", "many"), ("--threads", "-1"), ("--lr", "fast")])
def test_wrong_numbers(remate: Remate, wrong: tuple[str, str]) -> None:
    assert remate("run", "s.json", "--model", "models.py:build", *wrong).status == 2


@pytest.mark.usefixtures("planned")
def test_both_sides_train_alike(remate: Remate) -> None:
    outcome = remate("run", "s.json", "--model", "models.py:with_keywords", "--steps", "4", "--lr", "0.5")
    assert outcome.status == 0
    assert "largest gradient difference: 0 (bitwise equal)" in outcome.out


@pytest.mark.usefixtures("planned")
def test_memory_that_runs_out(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from remate.step_measurement import beside_eager as trial

    def full(*args: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nmore of it")

    monkeypatch.setattr(trial, "peak_bytes", full)
    outcome = remate("run", "s.json", "--model", "models.py:build")
    assert outcome.status == 1
    assert outcome.err.startswith(
        "error: training by the schedule runs out of memory: CUDA out of memory. Tried to allocate 3 GiB.\nhint: "
    )


@pytest.mark.usefixtures("planned")
def test_a_step_that_is_not_the_models_is_stale(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest does not notice the change; a step beside the model does."""
    from remate_runtime.applied import scheduled_forward

    def doubled(*args: object) -> Any:
        return [2 * value for value in run_step(*args)]

    run_step: Any = scheduled_forward.run_step
    monkeypatch.setattr(scheduled_forward, "run_step", doubled)
    outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "1")
    assert outcome.status == 3
    assert "s.json: stale, its first step differs from that of models.py:build" in outcome.err
    assert "gradient of '0.weight' by" in outcome.err
    assert "remate replan s.json --model models.py:build" in outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_check_runs_a_step_if_requested_to(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    from remate_runtime.applied import scheduled_forward

    fits = remate("check", "s.json", "--model", "models.py:build", "--step")
    assert fits.status == 0
    assert "s.json: fits models.py:build, and one step gives the same results" in fits.out
    run_step: Any = scheduled_forward.run_step
    monkeypatch.setattr(scheduled_forward, "run_step", lambda *args: [2 * value for value in run_step(*args)])
    assert remate("check", "s.json", "--model", "models.py:build").status == 0
    stale = remate("check", "s.json", "--model", "models.py:build", "--step")
    assert stale.status == 3
    assert "one step\n" in stale.err
    assert "gradient of '0.weight': the model gives" in stale.err
    assert remate("check", "s.json", "--step").status == 2


@pytest.mark.usefixtures("planned")
def test_a_patched_function_of_torch_is_noticed(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        return (x.unsqueeze(-2) * weight).sum(-1) + bias

    assert "does not run" not in remate("run", "s.json", "--model", "models.py:build", "--steps", "1").out
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "1")
    assert outcome.status == 3
    assert "linear" in outcome.err


@pytest.mark.usefixtures("planned")
def test_other_activations_are_refused(remate: Remate) -> None:
    outcome = remate("run", "s.json", "--model", "models.py:other_activation", "--steps", "1")
    assert outcome.status == 3
    assert "(GELU): is a torch.nn.ReLU now" in outcome.err


def test_what_is_paged_is_measured(remate: Remate) -> None:
    """Measurement and prediction. Where parameters are paged, both peaks include them."""
    options = ["--cost", "cpu", "--disk-budget", "1GiB", "--bandwidth", "2GB/s", "-o", "s.json", "--quiet"]
    for strategy, budget in (("offload-only", "90%"), ("weight-offloading", "97%")):
        planned = remate("plan", "models.py:build", "--budget", budget, "--strategy", strategy, *options, "--force")
        assert planned.status == 0, planned
        outcome = remate("run", "s.json", "--model", "models.py:build", "--steps", "2")
        assert outcome.status == 0, outcome
        moved = dict(
            re.findall(r"^paged (out|back): (\S+ \S+) in a step \(predicted \2\), waited for ", outcome.out, re.M)
        )
        assert "back" in moved, outcome
        assert ("both peaks count parameters" in outcome.out) == (strategy == "weight-offloading")
        assert "0 (bitwise equal)" in outcome.out
