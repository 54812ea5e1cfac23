"""Loops of libraries train to the same parameters, to the bit, with a schedule as without, and within the budget."""

from __future__ import annotations

import importlib.util

import pytest
import torch.distributed as dist

from tests.ranks import run_ranks
from tools.bench.integrations import distributed
from tools.bench.integrations.distributed import CASES, outcomes
from tools.bench.integrations.loops import LOOPS, Loop
from tools.bench.integrations.outcome import outcome

SCHEDULED = {"PEFT LoRA, disable_adapter": 3, "HF Trainer, varied lengths, smaller last batch": 1}


@pytest.mark.usefixtures("quick_searches")
@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_loop(loop: Loop) -> None:
    for package in loop.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    result = outcome(loop)
    assert result.bitwise
    assert result.losses
    assert result.scheduled >= SCHEDULED.get(loop.name, 4)
    assert result.programs <= result.shapes
    assert result.shapes > 1 or not loop.dims
    assert result.peak <= result.budget < result.baseline


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "spawn", run_ranks)  # forks, in which searches are as short
    result = outcomes(tuple(CASES))
    assert [name for name, entry in result.items() if not entry.bitwise] == []
    assert [name for name, entry in result.items() if entry.peak >= entry.eager] == []
