"""Steps that a GPU replays: eager's gradients, in the memory that was predicted."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

from remate_runtime import apply, predicted_peak

from ..small import Layers, Mlp, Normed, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes

pytestmark = pytest.mark.cuda


def train(model: Any, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    losses = []
    for x in batches:
        outputs = model(x)
        losses.append(outputs if outputs.ndim == 0 else outputs.square().mean())
        losses[-1].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
        model.zero_grad()
    return [loss.detach() for loss in losses]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("make", [Layers, Normed, Mlp])
def test_a_loop_is_eagers(make: Any, recomputes: Any, engine: str) -> None:
    shape = {Layers: (512, 64), Normed: (4, 3, 6, 6), Mlp: (64, 8)}[make]
    model = seeded(make()).cuda()
    schedule = in_blocks(model, (data(*shape).cuda(),), recomputes)
    with warnings.catch_warnings(action="error", category=UserWarning):
        warnings.filterwarnings("ignore", message="with CUDA graphs a step")
        planned = apply(copy.deepcopy(model), schedule, engine=engine, cuda_graphs=True)
        batches = [data(*shape, seed=seed).cuda() for seed in range(5)]
        actual = train(planned, batches)
    for left, right in zip(actual, train(model, batches), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    for left, right in zip(planned.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    for left, right in zip(planned.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("recomputes", [no_recomputes, everything])
def test_dropout_draws_eagers_numbers(recomputes: Any, engine: str) -> None:
    model, x = seeded(Mlp(0.5)).cuda(), data(64, 8).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,), recomputes), engine=engine, cuda_graphs=True)
    results = []
    for module in (planned, model):
        torch.manual_seed(3)
        results.append([*train(module, [x, 2 * x, 3 * x]), torch.cuda.get_rng_state()])
    for module, other in zip(*results, strict=True):
        torch.testing.assert_close(module, other, rtol=1e-4, atol=1e-5)


def test_the_pool_takes_what_was_predicted() -> None:
    model, x = seeded(Layers()).cuda(), data(1 << 18, 64).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,), just_in_time), cuda_graphs=True)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        planned(x).backward()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    taken = torch.cuda.memory_reserved() - before
    assert taken == pytest.approx(predicted_peak(planned), rel=0.1, abs=48 << 20)  # cuBLAS, and gradients beside


def test_another_stream_waits_for_the_last_replay() -> None:
    model, x = seeded(Layers()).cuda(), data(4096, 64).cuda()
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,), just_in_time), cuda_graphs=True)
    train(planned, [x])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        train(planned, [2 * x])
    torch.cuda.current_stream().wait_stream(stream)
    train(planned, [3 * x])
    train(model, [x, 2 * x, 3 * x])
    for left, right in zip(planned.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
