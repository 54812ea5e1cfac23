"""`remate.record`: the first training call of a loop, recorded for planning."""

from __future__ import annotations

import copy
import inspect
import io
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.errors import CaptureError
from remate_runtime import apply

from ..runtime.small import data, seeded


class Namespace:
    def __init__(self) -> None:
        self.use_cache, self.width = True, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Namespace()
        self.a, self.drop, self.b = nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **more: Any) -> dict[str, Any]:
        logits = self.b(self.drop(torch.tanh(self.a(x)))) * self.scale
        if labels is None:
            return {"logits": logits}
        by_name = {"loss": nn.functional.cross_entropy(logits.float(), labels, reduction="sum") / more["items"]}
        return {**by_name, "cache": logits} if self.config.use_cache else by_name


class Loop:
    """As libraries train: evaluates first, settings of their own, autocast put around forward, smaller batches at the
    end."""

    def __init__(self, model: Net) -> None:
        self.model = model
        model.config.use_cache = False
        model.a.requires_grad_(False)

    def train(self) -> list[float]:
        model = self.model.train()
        model.drop.eval()
        forward = model.forward

        def cast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return forward(*args, **kwargs)

        model.forward = cast  # type: ignore[method-assign]
        with torch.no_grad():
            model(data(3, 8))
        losses = []
        for size in (6, 6, 2):
            batch = {"labels": torch.arange(size) % 4, "x": data(size, 8)}
            loss = model(**batch, items=torch.tensor(float(size)))["loss"]
            loss.backward()
            losses.append(loss.item())
        model.config.use_cache = True
        model.eval()
        model.requires_grad_(True)
        return losses


def test_the_first_training_call_is_planned_as_the_loop_made_it() -> None:
    model, plain = seeded(Net()), seeded(Net())
    wanted = Loop(plain).train()
    with remate.record(model) as call:
        actual = Loop(model).train()
    assert actual == wanted
    assert type(model) is Net
    assert not call.args
    assert list(call.kwargs) == ["labels", "x", "items"]
    wrapper = vars(model)["forward"]
    schedule = remate.plan(call, budget="100%", cost="cpu")
    assert vars(model)["forward"] is wrapper
    recorded = schedule.model
    assert (recorded.training, recorded.mode_overrides, recorded.autocast) == (True, ("drop",), "bf16")
    assert recorded.frozen == ("a.weight", "a.bias")
    assert recorded.inputs["kwargs"]["labels"]["tensor"] == "i64[6]"
    assert (model.training, model.config.use_cache, model.a.weight.requires_grad) == (False, True, True)

    fresh = seeded(Net())
    fresh.config.use_cache = False
    fresh.train().drop.eval()
    fresh.a.requires_grad_(False)
    planned = apply(fresh, schedule)
    with torch.autocast("cpu", torch.bfloat16):
        assert planned(**call.kwargs)["loss"].item() == wanted[0]


def test_stop_leaves_the_loop_at_the_call() -> None:
    model, steps = seeded(Net()), []
    with remate.record(model, stop=True) as call:
        for step in range(3):
            model(data(2, 8))
            steps.append(step)
    assert steps == []
    assert [t.shape for t in call.args] == [(2, 8)]
    assert remate.plan(call, budget="100%", cost="cpu").name == "Net"


def test_the_recorded_model_is_the_model() -> None:
    model = seeded(Net())
    signature = inspect.signature(model.forward)
    with remate.record(model) as call:
        assert isinstance(model, Net)
        assert inspect.signature(model.forward) == signature
        twin = copy.deepcopy(model)
        assert type(twin) is Net
        twin(data(3, 8))
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)) is Net
        given = data(4, 8).requires_grad_()
        model(given)
        with torch.no_grad():
            given.zero_()
        model(data(5, 8))
    assert torch.equal(call.args[0], data(4, 8))
    assert call.args[0].requires_grad


def test_what_cannot_be_recorded_is_told() -> None:
    model = seeded(Net())
    with remate.record(model) as call, torch.no_grad():
        model(data(2, 8))
        with pytest.raises(CaptureError, match="the loop is still recorded"):
            remate.plan(call)
    with pytest.raises(
        CaptureError, match=r"no training call of the Net was recorded: there was 1 call\(s\), all without"
    ):
        remate.plan(call)
    with pytest.raises(CaptureError, match="a recorded call has its arguments"):
        remate.plan(call, (data(2, 8),))
    planned = apply(model, remate.plan(model, (data(2, 8),), budget="100%", cost="cpu"))
    with pytest.raises(CaptureError, match="the model has a schedule already"), remate.record(planned):
        pass
    model.forward = lambda x: x  # type: ignore[method-assign]
    with (
        pytest.raises(CaptureError, match=r"forward of the model was replaced by (.|\n)*record before"),
        remate.record(model),
    ):
        pass


def test_a_forward_that_is_replaced_while_it_is_recorded_leads_to_the_part_that_it_calls() -> None:
    """As TRL's trainers do: they compute the logits themselves, from what a part of the model returns."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with remate.record(model) as call:
        model.forward = lambda x: model[0](x) * 2  # type: ignore[method-assign, assignment]
        model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(
        CaptureError, match=r"replaced meanwhile, by .*<lambda>(.|\n)*record that, remate.record\(model.base_model"
    ):
        _ = call.args
