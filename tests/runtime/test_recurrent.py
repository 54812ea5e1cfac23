"""Recurrent layers run as eager runs them: on the CPU, an LSTM's layer is one operator, and its gradients are
eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate.capture.capture_step import capture
from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import ScheduleError, apply
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.operator_calls import uses_known_workspace

from .small import data, seeded
from .stepping import (
    assert_same,
    everything,
    just_in_time,
    loss_of,
    no_recomputes,
    predicted_peak,
    same_in_low_precision,
    schedule_of,
    step,
    with_recomputes,
)

pytestmark = pytest.mark.skipif(not uses_known_workspace(torch.float32), reason="another oneDNN")
LAYER = "aten.mkldnn_rnn_layer"


def test_how_much_a_layer_leaves_is_tried_in_full_precision() -> None:
    """The test runs once for all models, so an active autocast must not change its result."""
    with torch.autocast("cpu", torch.bfloat16):
        assert uses_known_workspace(torch.float32)


class Tagger(nn.Module):
    """A recurrent stack whose states count, given or not."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 10, **options)
        self.head = nn.Linear(10 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
        out, (h, c) = self.cell(x, hx=state)
        return self.head(out).square().mean() + h.sum() + (c * c).sum()


class Looped(nn.Module):
    """One layer for all rounds, its weights shared with another, its states handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.LSTM(6, 6, batch_first=True), nn.LSTM(6, 6, batch_first=True, bias=False)
        self.other.weight_hh_l0 = self.one.weight_hh_l0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for _ in range(3):
            x, state = self.one(x, state)
            x = self.other(x.flip(1))[0]
        return x.square().sum()


def state_of(layers: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return data(layers, batch, 10, seed=2), data(layers, batch, 10, seed=3)


CALLS: dict[str, tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]] = {
    "plain": ({}, (data(5, 4, 6),), {}),
    "unbatched": ({}, (data(5, 6),), {}),
    "state": ({"num_layers": 2}, (data(5, 4, 6),), {"state": state_of(2, 4)}),
    "all": (
        {"num_layers": 2, "bidirectional": True, "dropout": 0.3, "batch_first": True},
        (data(4, 5, 6), state_of(4, 4)),
        {},
    ),
    "no biases": ({"bias": False, "bidirectional": True}, (data(5, 4, 6),), {}),
}


@pytest.mark.quick("state-everything")
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("name", CALLS)
def test_steps_are_eagers_to_the_bit(name: str, recomputes: Any) -> None:
    options, args, kwargs = CALLS[name]
    eager = seeded(Tagger(**options))
    schedule = schedule_of(eager, args, kwargs, recomputes)
    planned = apply(copy.deepcopy(eager), schedule)
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    (block,) = schedule.blocks.values()
    assert sum(op.op == LAYER for op in block.forward) == layers
    for seed in range(2):
        assert_same(step(planned, args, kwargs, seed), step(eager, args, kwargs, seed))


def test_loops_shared_weights_and_frozen_ones() -> None:
    eager = seeded(Looped())
    eager.one.bias_ih_l0.requires_grad_(False)
    planned = apply(copy.deepcopy(eager), schedule_of(eager, (data(3, 4, 6),), recomputes=everything))
    assert_same(step(planned, (data(3, 4, 6),)), step(eager, (data(3, 4, 6),)))
    with torch.no_grad():
        schedule = planned(data(3, 4, 6))
    # oneDNN has another kernel for layers without gradients, which rounds otherwise on processors without AVX-512.
    assert torch.equal(schedule, eager(data(3, 4, 6)))


@pytest.mark.slow
def test_in_evaluation_mode_and_in_half_precision() -> None:
    eager = seeded(Tagger(num_layers=2, dropout=0.5)).eval()
    planned = apply(copy.deepcopy(eager), schedule_of(eager, (data(5, 4, 6),)))
    assert_same(step(planned, (data(5, 4, 6),)), step(eager, (data(5, 4, 6),)))
    half, x = seeded(Tagger()).bfloat16(), data(5, 4, 6).bfloat16()
    planned = apply(copy.deepcopy(half), schedule_of(half, (x,)))
    for model in (planned, half):
        step(model, (x,))
    same_in_low_precision(planned, half, lambda double: loss_of(double(x.double())))


@pytest.mark.compiled
def test_two_forwards_before_their_backwards() -> None:
    eager = seeded(Tagger())
    planned = apply(copy.deepcopy(eager), schedule_of(eager, (data(5, 4, 6),)))
    for model in (eager, planned):
        (model(data(5, 4, 6)) + 2 * model(data(5, 4, 6, seed=7))).backward()
    for left, right in zip(planned.parameters(), eager.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


@pytest.mark.allocating
def test_the_peak_is_as_predicted() -> None:
    """The workspace, most of what a layer holds, is an output of its operator."""
    eager = seeded(Tagger(num_layers=2))
    args = (data(40, 16, 6),)
    captured = capture(eager, args)
    schedule = with_recomputes(replace(captured, graph=costed(captured.graph)), no_recomputes)
    planned = apply(copy.deepcopy(eager), schedule)

    def run() -> None:
        planned(*args).backward()

    run()
    planned.zero_grad()
    measured, predicted = peak_bytes(run, torch.device("cpu")), predicted_peak(schedule)
    assert measured <= predicted <= measured + 64


def test_a_workspace_of_another_size_is_refused() -> None:
    schedule = schedule_of(seeded(Tagger()), (data(5, 4, 6),))
    ((name, block),) = schedule.blocks.items()

    def smaller(out: Any) -> Any:
        return tuple("u8[64]" if kind.startswith("u8[") else kind for kind in out) if isinstance(out, tuple) else out

    forward = tuple(replace(op, out=smaller(op.out)) for op in block.forward)
    assert forward != block.forward
    changed = replace(schedule, blocks={name: replace(block, forward=forward)})
    with pytest.raises(ScheduleError, match=r"u8\[[0-9]+\], the file declares u8\[64\]"):
        apply(seeded(Tagger()), replace(changed, model=replace(changed.model, fingerprint=fingerprint(changed))))
