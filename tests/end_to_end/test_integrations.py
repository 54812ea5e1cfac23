"""Loops of libraries train to the same parameters, to the bit, with a schedule as without, and within the budget."""

from __future__ import annotations

import importlib.util

import pytest
import torch.distributed as dist

from tools.bench.integrations.distributed import CASES, outcomes
from tools.bench.integrations.loops import LOOPS, Loop
from tools.bench.integrations.outcome import outcome

SCHEDULED = {"PEFT LoRA, disable_adapter": 3, "HF Trainer, varied lengths, smaller last batch": 1}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_loop(loop: Loop) -> None:
    for package in loop.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    found = outcome(loop)
    assert found.bitwise
    assert found.losses
    assert found.scheduled >= SCHEDULED.get(loop.name, 4)
    assert found.programs <= found.shapes
    assert found.shapes > 1 or not loop.dims
    assert found.peak <= found.budget < found.baseline


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_ranks() -> None:
    found = outcomes(tuple(CASES))
    assert [name for name, one in found.items() if not one.bitwise] == []
    assert [name for name, one in found.items() if one.peak >= one.eager] == []
