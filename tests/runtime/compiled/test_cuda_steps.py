"""Compiled steps on a GPU: eager's gradients, buffers and generator, within the predicted peak."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import remate
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply, predicted_peak
from remate_runtime.staleness import compare_models, training_step
from tests.models import ZOO

from ..small import Layers, Mlp, Normed, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes
from .subjects import Mixed, assert_close

pytestmark = pytest.mark.cuda


def step(model: Any, x: torch.Tensor, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model.zero_grad()
    outputs = model(x)
    loss = outputs[0] if isinstance(outputs, tuple) else outputs.pow(2).mean()
    loss.backward()
    gradients = {f"gradient {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    return {"loss": loss.detach(), **gradients, **buffers, "generator": torch.cuda.get_rng_state()}


@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("make", [lambda: Mixed(0.3), Normed, lambda: Mlp(0.4)])
def test_steps_are_eagers(make: Any, recomputes: Any) -> None:
    model = seeded(make()).cuda()
    x = (data(4, 3, 6, 6) if isinstance(model, Normed) else data(64, 8)).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,), recomputes), engine="compiled")
    for seed in range(3):
        assert_close(step(planned, x, seed), step(model, x, seed), 1e-4)


def test_something_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    model, x = seeded(Mixed()).cuda(), data(64, 8).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,)), engine="compiled")
    with caplog.at_level("INFO", logger="remate_runtime"):
        step(planned, x, 0)
    assert "does not compile" not in caplog.text
    assert "0 segments compiled" not in caplog.text


@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
def test_the_measured_peak_is_the_predicted_one(recomputes: Any) -> None:
    model, x = seeded(Layers()).cuda(), data(8192, 64).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,), recomputes), engine="compiled")
    for _ in range(2):
        planned.zero_grad()
        peak = peak_bytes(lambda: planned(x).backward(), "cuda")
    assert peak == pytest.approx(predicted_peak(planned), rel=0.01)


def test_another_stream() -> None:
    model, x = seeded(Mixed(0.3)).cuda(), data(64, 8).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,)), engine="compiled")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        actual = step(planned, x, 3)
    torch.cuda.current_stream().wait_stream(stream)
    assert_close(actual, step(model, x, 3), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "moe", "resnet", "unet", "state_space"])
def test_planned_from_measured_costs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which rounds inputs of convolutions to 11 bits
    model, args, kwargs = ZOO[name].build("cuda")
    schedule = remate.plan(model, args, kwargs, budget="70%")
    planned = apply(copy.deepcopy(model), schedule, engine="compiled")
    difference = compare_models(model, planned, args, kwargs, steps=2)
    assert difference.relative <= 1e-3, difference
    assert difference.generator_equal
    for _ in range(2):
        peak = peak_bytes(lambda: training_step(planned, args, kwargs), "cuda")
    assert peak <= 1.02 * predicted_peak(planned) + (1 << 20)
