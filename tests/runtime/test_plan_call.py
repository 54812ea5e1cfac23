"""A refused call prints the plan that fits it: taken at its word, it does."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate_runtime import BindError, StaleModelError, SteppedAsideWarning, apply
from remate_runtime.support.quantities import size

from ..dims.models import Padded
from .small import data, seeded


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.scale = nn.Linear(8, 4), 1.0

    def forward(self, x: Any, labels: Any = None, flag: bool = True) -> torch.Tensor:
        out = self.lin(x["ids"].float() if isinstance(x, dict) else x) * self.scale
        return (out - (labels[0] if flag else labels[1]) if labels is not None else out).square().mean()


def printed(planned: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(BindError) as caught:
        planned(*args, **kwargs)
    return str(caught.value).rpartition("remate.plan(")[2]


CALLS: list[tuple[Any, dict[str, Any]]] = [
    ((data(5, 8),), {}),
    ((data(3, 8).requires_grad_(),), {}),
    ((data(3, 8),), {"labels": [data(3, 4), data(4)], "flag": False}),
    (({"ids": torch.ones(3, 8, dtype=torch.int64)},), {"labels": (torch.tensor(1.0),)}),
]


@pytest.mark.quick("nested-False")
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=["shape", "grad", "arguments", "nested"])
def test_the_printed_plan_is_for_the_call(call: Any, cast: bool) -> None:
    model = seeded(Net())
    args, kwargs = call
    first = remate.plan(model, (data(3, 8),), budget="100%", cost="cpu")
    planned = apply(model, first)
    with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
        text = f"remate.plan({printed(planned, *args, **kwargs)}"
        collected = []
        plan = lambda *a, **k: collected.append(remate.plan(*a, **k, cost="cpu"))  # noqa: E731
        before = "with torch.autocast('cpu', torch.bfloat16): " if cast else ""
        with pytest.raises(BindError) as caught:
            planned(*args, **kwargs)
        assert f"for this call: {before}{text}" in str(caught.value)
    exec(f"{before}{text}".replace("remate.plan(", "plan("), {"plan": plan, "torch": torch, "model": model})
    assert collected[0].solve.settings.budget == "100%"
    again = apply(model, collected[0])
    with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
        assert torch.equal(again(*args, **kwargs), model(*args, **kwargs))


def test_a_model_planned_in_evaluation_mode_prints_the_plan_for_training() -> None:
    model = seeded(Net()).eval()
    planned = apply(model, remate.plan(model, (data(3, 8),), budget="100%", cost="cpu"))
    model.train()
    assert printed(planned, data(3, 8)).startswith("model.train(), (torch.zeros(3, 8),), budget=")


def test_the_printed_plan_keeps_a_frozen_layer_in_evaluation_mode() -> None:
    """As fine-tuning does with batch norms: a plan of `model.train()` would be refused again."""
    model = seeded(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))).train()
    planned = apply(model, remate.plan(model, (data(3, 8),), budget="100%", cost="cpu"))
    model[1].eval()
    text = printed(planned, data(3, 8))
    assert text.startswith("model, (torch.zeros(3, 8),), budget=")
    again: list[Any] = []
    plan = lambda *args, **options: again.append(remate.plan(*args, **options, cost="cpu"))  # noqa: E731
    exec(f"plan({text}", {"plan": plan, "torch": torch, "model": model})
    assert torch.equal(apply(model, again[0])(data(3, 8)), model(data(3, 8)))


def test_long_calls_are_to_be_recorded() -> None:
    model = seeded(Net())
    planned = apply(model, remate.plan(model, (data(3, 8),), budget="100%", cost="cpu"))
    with pytest.raises(BindError, match=r"for this call: with remate.record\(model\) as call"):
        planned(data(3, 8), labels=[torch.zeros(())] * 99)


def test_attributes_are_told_with_what_sets_them_back() -> None:
    model = seeded(Net())
    schedule = remate.plan(model, (data(3, 8),), budget="100%", cost="cpu")
    planned = apply(model, schedule)
    model.scale = 2.0
    told = r"set it back: model.scale = 1.0, or (.|\n)*is planned with remate.record"
    with pytest.raises(StaleModelError, match=told):
        planned(data(3, 8))
    with pytest.raises(
        StaleModelError, match=r"bring it back to what was planned: model.scale = 1.0; (.|\n)*remate.record"
    ):
        apply(model, schedule)


def test_sizes_that_the_file_leaves_open_are_requested_for_again() -> None:
    model = seeded(Net())
    planned = apply(model, remate.plan(model, (data(4, 8),), budget="100%", cost="cpu", dims={"x": {0: "b"}}))
    wanted = "model.train(), (torch.zeros(9, 8),), budget=\"100%\", dims={'x': {0: 'b=2..9'}})"
    assert printed(planned, data(9, 8)) == wanted


@pytest.mark.quick("9-dims1")
@pytest.mark.parametrize("dims", [None, {"x": {0: "b"}}, {"x": {0: "b=2..24/2"}}])
@pytest.mark.parametrize("batch", [1, 4, 9, 16, 40])
def test_a_printed_plan_for_another_size_holds_the_old_ones(dims: Any, batch: int) -> None:
    model = seeded(Net())
    first = remate.plan(model, (data(16, 8),), budget="100%", cost="cpu", dims=dims)
    ranges = first.model.dims.get("b")
    if (ranges and batch in range(ranges.min, ranges.max + 1, ranges.multiple)) or (not ranges and batch == 16):
        return
    text = printed(apply(model, first), data(batch, 8))
    made: list[Any] = []
    plan = lambda *a, **k: made.append(remate.plan(*a, **k, cost="cpu"))  # noqa: E731
    exec(f"plan({text}", {"plan": plan, "torch": torch, "model": model})
    assert ("size 1 has its own step" in text) == (batch == 1)
    assert made[0].solve.budget == first.solve.budget or batch == 40
    again = apply(model, [made[0], first] if batch == 1 else made[0])
    for number in (batch, 16, *([2] if dims else [])):
        assert torch.equal(again(data(number, 8)), model(data(number, 8)))


@pytest.mark.slow
def test_what_the_own_forward_takes_is_by_the_expressions_of_the_file() -> None:
    model = seeded(Net())
    dims = {"x": {0: "b=2..16"}}
    planned = apply(
        model, remate.plan(model, (data(16, 8),), budget="100%", cost="cpu", dims=dims), otherwise="original"
    )
    wanted = remate.plan(model, (data(40, 8),), budget="100%", cost="cpu").baseline_peak_bytes
    with pytest.warns(SteppedAsideWarning, match=rf"It takes {size(wanted)}, by the expressions of the file, over the"):
        planned(data(40, 8))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:OVER BUDGET")
def test_a_call_between_the_steps_of_a_range_has_a_range_or_a_step_of_its_own() -> None:
    """Padding to a multiple of 8 is another step, where the range in steps of 8 has none."""
    model = seeded(Padded())
    first = remate.plan(model, (data(3, 16, 4),), budget=100_000, cost="cpu", dims={"x": {1: "t=8..32/8"}})
    text = printed(apply(model, first), data(3, 12, 4))
    assert "t=12 has its own step" in text
    second = eval(f"plan({text}", {"plan": remate.plan, "torch": torch, "model": model})
    again = apply(model, [second, first])
    for t in (12, 8, 32):
        assert torch.equal(again(data(3, t, 4)), model(data(3, t, 4)))
    text = printed(apply(model, first), data(3, 40, 4))
    assert "budget=100000, dims={'x': {1: 't=8..40/8'}})" in text
