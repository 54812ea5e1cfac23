"""On a CUDA device: the same steps, generators and peaks; a schedule planned on CPU runs there if its operators do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from remate.measure.allocator import peak_bytes
from remate_runtime import apply

from .small import Mlp, Normed, data, seeded
from .stepping import assert_same, everything, just_in_time, no_reruns, predicted_peak, schedule_of

pytestmark = pytest.mark.cuda


def _step(model: nn.Module, x: torch.Tensor, seed: int) -> dict:
    torch.manual_seed(seed)
    model.zero_grad()
    loss = model(x).float().pow(2).mean()
    loss.backward()
    return {
        "loss": loss.detach(),
        **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
        **{n: b.clone() for n, b in model.named_buffers()},
        "generator": torch.cuda.get_rng_state(),
    }


@pytest.mark.parametrize("planned_on", ["cuda", "cpu"])
@pytest.mark.parametrize("reruns", [no_reruns, everything, just_in_time])
@pytest.mark.parametrize("make", [lambda: Mlp(0.4), Normed])
def test_steps_equal_eager(make, reruns, planned_on):
    model = seeded(make())
    x = data(4, 3, 6, 6) if isinstance(model, Normed) else data(4, 8)
    schedule = schedule_of(model.to(planned_on), (x.to(planned_on),), reruns=reruns)
    model, x = model.cuda(), x.cuda()
    eager, planned = copy.deepcopy(model), apply(model, schedule)
    for seed in range(3):
        assert_same(_step(planned, x, seed), _step(eager, x, seed), tolerance=1e-5)


def test_moving_a_planned_model():
    model, x = seeded(Mlp(0.4)), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x).sum().backward()
    planned.cuda()
    planned.zero_grad()
    planned(x.cuda()).sum().backward()
    assert model.a.weight.grad.is_cuda
    planned.cpu()
    planned.zero_grad()
    planned(x).sum().backward()


def test_autocast():
    model, x = seeded(Mlp()).cuda(), data(4, 8).cuda()
    eager = copy.deepcopy(model)
    with torch.autocast("cuda", torch.bfloat16):
        planned = apply(model, schedule_of(model, (x,)))
        found, wanted = planned(x), eager(x)
    assert torch.equal(found, wanted)
    found.float().sum().backward()


@pytest.mark.parametrize("reruns", [no_reruns, everything, just_in_time])
def test_measured_peak_is_the_predicted_one(reruns):
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x)) * 1.5 + x
            return x.pow(2).mean()

    model, x = seeded(Deep()).cuda(), data(8192, 64).cuda()
    schedule = schedule_of(model, (x,), reruns=reruns)
    planned = apply(model, schedule)

    def run() -> None:
        planned(x).backward()

    for _ in range(2):
        model.zero_grad()
        peak = peak_bytes(run, "cuda")
    assert peak == pytest.approx(predicted_peak(schedule), rel=0.01)
