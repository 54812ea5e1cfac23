"""Plans with splits of layers with dropout, on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.api.plan import prepare
from remate.errors import InfeasibleError
from remate.splits.windows import large_windows
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from remate_runtime.flat_step import expand
from remate_runtime.format import Schedule

from .captured_once import captured_once  # noqa: F401

pytestmark = [pytest.mark.eager, pytest.mark.usefixtures("captured_once")]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(64, 4, 2048, 0.1, batch_first=True) for _ in range(2))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Encoder().train(), torch.randn(4, 64, 64)


def test_the_window_of_a_layer_contains_its_dropout_forward_and_backward() -> None:
    module, x = model()
    step = prepare(module, (x,), cost="cpu")
    graph = step.captured.graph
    windows = [{graph.operations[i].id for i in window.operations} for window in large_windows(step, 2 << 20)]
    for layer in ("layers.0.", "layers.1."):
        (around,) = [names for names in windows if f"{layer}dropout.native_dropout" in names]
        others = "linear1.addmm", "relu", "linear2.addmm", "linear2.grad.mm", "dropout.grad.native_dropout_backward"
        assert around.issuperset(layer + name for name in others)


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_layers_with_dropout_need_less_memory_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = model()

    def smallest() -> int:
        with pytest.raises(InfeasibleError) as refusal:
            remate.plan(module, (x,), budget=1000, cost="cpu", effort="quick", split=True, progress=None)
        return refusal.value.smallest or 0

    split = smallest()
    monkeypatch.setattr("remate.splits.windows.why_not_drawn", lambda graph, op: "a barrier" if op.random else "")
    assert split < smallest() / 2


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_the_measured_peak_and_the_results_are_the_predicted_ones() -> None:
    module, x = model()
    options: dict[str, Any] = {"budget": "25%", "cost": "measured", "cache": False, "effort": "quick"}
    schedule = remate.plan(module, (x,), split=True, progress=None, **options)
    assert isinstance(schedule, Schedule)
    expanded = expand(schedule)
    drawn = [op.id for op in expanded.graph.operations if op.random]
    assert [name for name in drawn if "dropout.native_dropout@all.mask" in name]
    eager, ours = copy.deepcopy(module), copy.deepcopy(module)
    applied = apply(ours, schedule, verify="never")
    following = list[torch.Tensor]()
    for run in (eager, applied):
        torch.manual_seed(5)
        loss = run(x)
        loss.backward()
        following += [loss.detach(), torch.rand(3)]
    assert torch.equal(following[0], following[2])
    assert torch.equal(following[1], following[3])
    names = [value.name for value in expanded.graph.values]
    listed = {names[v] for v in (*expanded.reordered, *expanded.rounded)}
    for (name, one), other in zip(eager.named_parameters(), ours.parameters(), strict=True):
        expected, found = one.grad, other.grad
        assert expected is not None
        assert found is not None
        torch.testing.assert_close(found, expected)
        assert name in listed or torch.equal(found, expected)
    applied.zero_grad(set_to_none=True)
    assert peak_bytes(lambda: applied(x).backward()) == schedule.peak_bytes
