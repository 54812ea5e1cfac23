"""Why a search stopped: every possible word is written to a file and read again."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import remate_runtime
from remate.api.plan import prepare
from remate.api.writing import schedule_of
from remate.partition.hierarchy import Hierarchy
from remate.strategy import CandidatePool, Request, Solution, StepInstance, alone, policy, solve
from remate_runtime.format import STOPPED_BY


@cache
def step() -> Hierarchy:
    layers = [part for _ in range(4) for part in (nn.Linear(32, 32), nn.GELU())]
    return prepare(nn.Sequential(*layers), (torch.zeros(64, 32),), cost="h200")


def interrupting(text: str) -> None:
    """Interrupt as Ctrl-C does, as soon as there is a plan."""
    if "more time, peak" in text:
        os.kill(os.getpid(), signal.SIGINT)


def stopped(reason: str) -> Solution:
    instance = StepInstance(step().captured.graph, step().parts)
    budget = int(0.8 * instance.baseline.peak)
    exact, pool = Request(budget, gap=0.0), CandidatePool()
    if reason == "optimal":
        return solve(instance, Request(instance.baseline.peak))
    if reason == "gap":
        return solve(instance, Request(budget, gap=0.5), alone("greedy"))
    if reason == "heuristic":
        return solve(instance, exact, alone("greedy"))
    if reason == "interrupted":
        return solve(instance, exact, alone("greedy"), progress=interrupting)
    solve(instance, exact, policy("greedy"), pool=pool)
    return solve(instance, exact, policy("greedy"), pool=pool, time_limit=1e-9)


REASONS = ("optimal", "gap", "heuristic", "interrupted", "time")


@pytest.mark.slow("optimal")
@pytest.mark.parametrize("reason", REASONS)
def test_every_end_of_a_search_can_be_saved(reason: str, tmp_path: Path) -> None:
    result = stopped(reason)
    assert result.stopped_by == reason
    path = str(tmp_path / "s.json")
    schedule_of(step(), result, result.baseline_peak, "h200", name="s").save(path)
    assert remate_runtime.load(path).solve.stopped_by == reason


def test_the_words_are_those_of_the_format() -> None:
    assert set(REASONS) <= set(STOPPED_BY)
