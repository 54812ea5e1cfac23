"""`live` names inputs of the call: numbers that differ from call to call."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import remate
from remate.errors import CaptureError
from remate.live_attributes.capturing import captured
from remate.training.state import state_of
from remate_runtime import BindError, Schedule, SteppedAsideWarning, apply
from remate_runtime.format import decode, encode

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, share: float) -> torch.Tensor:  # type: ignore[override]
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient.neg() * ctx.share, None


class Mixed(nn.Module):
    """A mixture, a gradient that is reversed, and dropout, each with a number of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.alpha = 0.5

    def forward(self, x: torch.Tensor, share: float = 0.5, *more: float, options: Any = None) -> torch.Tensor:
        x = x * share + x.flip(0) * (1 - share)
        for layer in self.layers:
            x = Reversed.apply(torch.tanh(layer(x)), share / 4) * self.alpha  # type: ignore[assignment]
        if options is not None:
            x = F.dropout(x, options.rates[0])
        return (x * sum(more) if more else x).square().mean()


def plan(model: nn.Module, args: Any, kwargs: Any, live: list[str]) -> Schedule:
    schedule = remate.plan(model, args, kwargs, budget="90%", cost="cpu", effort="quick", live=live)
    return decode(encode(schedule))


def equal(planned: nn.Module, eager: nn.Module, *args: Any, **kwargs: Any) -> bool:
    results = []
    for model in (planned, eager):
        torch.manual_seed(0)
        model.zero_grad()
        loss = model(*args, **kwargs)
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    return all(map(torch.equal, *results))


def options(rate: float) -> SimpleNamespace:
    return SimpleNamespace(rates=[rate, "text"])


def test_gradients_are_eagers_whatever_the_inputs_are() -> None:
    torch.manual_seed(0)
    eager = Mixed()
    model = copy.deepcopy(eager)
    live = ["share", "more.*", "options.rates.0", "alpha"]
    schedule = plan(model, (X, 0.3, 2.0, 0.5), {"options": options(0.1)}, live)
    assert [*schedule.model.live] == ["share", "more.0", "more.1", "options.rates.0", "alpha"]
    assert schedule.model.inputs["args"][1:] == [{"live": "share"}, {"live": "more.0"}, {"live": "more.1"}]
    planned = apply(model, schedule)
    for share, more, rate in ((0.3, 2.0, 0.1), (0.7, -1.0, 0.25), (0.01, 1e-3, 0.5)):
        planned.alpha = eager.alpha = 1 - share
        assert equal(planned, eager, X, share, more, 0.5, options=options(rate))
    with pytest.raises(BindError, match=r"(?s)live input 'options.rates.0' is 1.0, .* above 0 and below 1.*live="):
        planned(X, 0.3, 2.0, 0.5, options=options(1.0))


def test_defaults_and_keywords_are_read() -> None:
    eager = Mixed()
    model = copy.deepcopy(eager)
    planned = apply(model, plan(model, (X,), {"share": 0.3}, ["share"]))
    assert equal(planned, eager, X)
    assert equal(planned, eager, X, 0.7)
    assert equal(planned, eager, x=X, share=0.2)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1, "is the integer 1, planned was a float"),
        (True, "is of type bool"),
        ("0.3", "is of type str"),
        (None, "is of type NoneType"),
        (float("nan"), "is nan"),
        (torch.tensor(0.3), "is of type Tensor"),
    ],
)
def test_other_values_are_refused(share: Any, text: str) -> None:
    model = Mixed()
    planned = apply(model, plan(model, (X, 0.3), {}, ["share"]))
    with pytest.raises(BindError, match=f"live input 'share' {text}"):
        planned(X, share)


def test_floats_of_numpy_are_floats() -> None:
    numpy = pytest.importorskip("numpy")
    eager = Mixed()
    model = copy.deepcopy(eager)
    planned = apply(model, plan(model, (X, numpy.float64(0.3)), {}, ["share"]))
    assert equal(planned, eager, X, numpy.float64(0.6))
    planned = apply(model, plan(model, (X, numpy.float64(0.3)), {}, []))
    assert equal(planned, eager, X, numpy.float64(0.3))
    with pytest.raises(BindError, match=r"0\.3 when planning, now it is 0\.6; .*live=\['share'\]"):
        planned(X, numpy.float64(0.6))


def test_the_call_that_it_prints_plans_the_number_as_live() -> None:
    model = Mixed()
    planned = apply(model, plan(model, (X, 0.3), {}, []))
    with pytest.raises(BindError, match=r"remate\.plan\(.*, live=\['share'\]\)") as caught:
        planned(X, 0.6)
    call = str(caught.value).partition("for this call: ")[2]
    schedule = eval(call.replace("budget=", 'cost="cpu", budget='), {"remate": remate, "torch": torch, "model": model})
    assert equal(apply(model, schedule), copy.deepcopy(model), X, 0.2)


def test_several_sizes() -> None:
    eager = Mixed()
    model = copy.deepcopy(eager)
    schedule = remate.plan(
        model, (X, 0.3), budget="90%", cost="cpu", effort="quick", live=["share"], dims={"x": {0: "b=8..128"}}
    )
    planned = apply(model, decode(encode(schedule)))
    for rows, share in ((64, 0.3), (16, 0.8), (128, 0.1)):
        assert equal(planned, eager, X.repeat(2, 1)[:rows], share)


class ByStep(nn.Module):
    """Forward finds out about a step in a way that is not arithmetic."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(16, 16), how

    def forward(self, x: torch.Tensor, step: float) -> torch.Tensor:
        x = self.linear(x)
        if self.how == "set":
            x = x * 2 if step in {100, 200} else x
        elif self.how == "dict":
            known: dict[float, float] = {100: 2.0}
            x = x * known.get(step, 1.0)
        elif self.how == "text":
            x = x * {"100": 2.0}.get(f"{step}", 1.0)
        return (x * step).mean()


@pytest.mark.parametrize(
    ("how", "step", "text"),
    [
        ("set", 5, "uses a live number by hash"),
        ("set", 5.0, "uses a live number by hash"),
        ("dict", 5, "uses a live number by hash"),
        ("text", 5, "uses a live number by format"),
        ("text", 5.0, "uses a live number by format"),
    ],
)
def test_what_forward_looks_up_is_refused(how: str, step: float, text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        captured(ByStep(how), (X, step), {}, live=["step"])


def test_integers_that_forward_computes_with_are_live() -> None:
    eager = ByStep("")
    model = copy.deepcopy(eager)
    planned = apply(model, remate.plan(model, (X, 5), budget="100%", cost="cpu", live=["step"]))
    for step in (5, 100, 7.5, -1):
        assert equal(planned, eager, X, step)


def test_an_attribute_of_the_same_name_is_refused() -> None:
    class Same(Mixed):
        share = 0.5

    with pytest.raises(CaptureError, match="both an attribute and an input are called 'share'"):
        captured(Same(), (X, 0.3), {}, live=["share"])


def test_auto_plans_numbers_that_change() -> None:
    eager = Mixed()
    model = remate.auto(copy.deepcopy(eager), budget="90%", cost="cpu")
    assert equal(model, eager, X, 0.1)
    with pytest.warns(SteppedAsideWarning, match="share"):
        assert equal(model, eager, X, 0.2)
    for at in range(4):
        assert equal(model, eager, X, 0.3 + at / 10)
    state = state_of(model)
    assert state is not None
    assert [schedule.model.live.keys() for schedule in state.outcome.schedules] == [{"share"}]
