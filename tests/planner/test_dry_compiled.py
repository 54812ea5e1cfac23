"""Compiled steps without kernels: Inductor writes the code for a GPU that is not here, and the code runs."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.api.dry_run import dry_run
from remate.api.elsewhere import on_device_of
from remate.capture.recorded import RecordedCall
from remate_runtime.engine.compiled import artefacts

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="steps of named GPUs are captured where there is none"
)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(48, 100), nn.Linear(50, 48), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.up(x).chunk(2, -1)
        return self.drop(self.down(nn.functional.silu(left) * right)).square().mean()


@pytest.mark.slow
def test_the_code_for_a_gpu_runs_and_a_wrong_prediction_is_noticed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, args = Gated(), (torch.randn(40, 48),)
    schedule = remate.plan(model, args, budget="100%", device="cuda:h100", progress=None)
    usual = artefacts.held

    def too_little(*given: Any) -> Any:
        memory = usual(*given)
        return memory._replace(peak=memory.peak - 4096)

    with on_device_of(schedule, RecordedCall.of(model, args, {})) as call:
        with caplog.at_level(logging.INFO, "remate_runtime"):
            ran = dry_run(call, schedule, engine="compiled")
            replayed = dry_run(call, schedule, engine="compiled", cuda_graphs=True)
        monkeypatch.setattr(artefacts, "held", too_little)
        wrong = dry_run(call, schedule, engine="compiled")
    assert "does not compile" not in caplog.text
    assert re.search(r"[1-9]\d* segments compiled as", caplog.text)
    assert (ran.peak, ran.gradients) == (ran.predicted, 4)
    assert (replayed.graphs, replayed.gradients) == (2, 4)
    assert replayed.peak <= replayed.predicted
    assert wrong.peak > wrong.predicted
