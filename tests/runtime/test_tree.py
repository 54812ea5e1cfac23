"""Calls against the recorded call: what is equal, and what the errors say."""

from __future__ import annotations

import pytest
import torch

from remate_runtime import BindError, apply

from .small import Answering, Mlp, data, seeded
from .stepping import schedule_of

X, MASK, Y = data(2, 8), torch.tensor([True, False, False, True]).expand(2, 4).contiguous(), data(2, 4, seed=3)


@pytest.fixture(scope="module")
def planned():
    model = seeded(Answering())
    return apply(model, schedule_of(model, (X, MASK), {"labels": {"y": Y}}))


@pytest.fixture(scope="module")
def mlp():
    model = seeded(Mlp())
    return apply(model, schedule_of(model, (X,)))


def test_positional_keyword_and_default_are_equal(planned):
    wanted = planned(X, MASK, labels={"y": Y}).loss
    for result in (
        planned(X, mask=MASK, labels={"y": Y}),
        planned(mask=MASK, x=X, labels={"y": Y}),
        planned(X, MASK, labels={"y": Y}, scale=1.0),
    ):
        assert torch.equal(result.loss, wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(X, MASK), r"'labels' must have the keys \['y'\], got None"),
        (lambda m: m(X, labels={"y": Y}), r"'mask' was a tensor bool\[2,4\] when planning, now it is None"),
        (lambda m: m(X, MASK, labels={"z": Y}), r"'labels' must have the keys \['y'\]"),
        (lambda m: m(X, MASK, labels=Y), r"'labels' must have the keys .* got a tensor f32\[2,4\]"),
        (lambda m: m(X, MASK, labels={"y": Y}, scale=2.0), r"'scale' was left out when planning \(1.0\), the call "
        r"passes 2.0"),
        (lambda m: m(X, MASK, labels={"y": Y}, scale=True), r"'scale'.* passes True"),
        (lambda m: m(labels={"y": Y}, mask=MASK), r"missing a required argument: 'x'"),
        (lambda m: m(X, MASK, labels={"y": Y}, other=1), r"unexpected keyword argument 'other'"),
        (lambda m: m(data(3, 8), MASK, labels={"y": Y}), r"'x' must be f32\[2,8\] on cpu, got f32\[3,8\].*\n.*plan "
        r"sizes that vary"),
        (lambda m: m(X.double(), MASK, labels={"y": Y}), r"'x' must be f32\[2,8\].*got f64\[2,8\]"),
        (lambda m: m(X, MASK, labels={"y": Y.to("meta")}), r"'labels\.y' must be f32\[2,4\] on cpu, got f32\[2,4\] "
        r"on meta"),
        (lambda m: m(X.clone().requires_grad_(), MASK, labels={"y": Y}), r"'x' requires grad, and the schedule has "
        r"no gradient"),
    ],
)  # fmt: skip
def test_other_calls_are_refused(planned, call, message):
    with pytest.raises(BindError, match=message):
        call(planned)


def test_inputs_that_require_grad_are_fine_without_grad_mode(mlp):
    with torch.no_grad():
        mlp(X.clone().requires_grad_())


def test_inference_tensors_as_inputs(mlp):
    with torch.inference_mode():
        x = X.clone()
    mlp(x).sum().backward()


def test_literal_arguments_must_be_the_recorded_ones():
    class Switch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(8, 8)

        def forward(self, x, *rest, power=1, mode=None, **more):
            out = self.lin(x) ** power
            for item in (*rest, *more.values()):
                out = out + item
            return out if mode is None else out * 2

    model = seeded(Switch())
    planned = apply(model, schedule_of(model, (X, X), {"power": 2, "mode": "twice", "bias": X}))
    wanted = model(X, X, power=2, mode="twice", bias=X)
    assert torch.equal(planned(X, X, power=2, mode="twice", bias=X), wanted)
    assert torch.equal(planned(X, X, bias=X, mode="twice", power=2), wanted)
    with pytest.raises(BindError, match="'power' was 2 when planning, now it is 3"):
        planned(X, X, power=3, mode="twice", bias=X)
    with pytest.raises(BindError, match="'mode' was 'twice' when planning, now it is None"):
        planned(X, X, power=2, bias=X)
    with pytest.raises(BindError, match=r"without the input 'rest\.1'"):
        planned(X, X, X, power=2, mode="twice", bias=X)
    with pytest.raises(BindError, match="'bias' is missing"):
        planned(X, X, power=2, mode="twice")
    with pytest.raises(BindError, match="without the input 'other'"):
        planned(X, X, power=2, mode="twice", bias=X, other=X)


def test_nested_sequences():
    class Nest(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(8, 8)

        def forward(self, pair, flags):
            return [self.lin(pair[0]), {"b": pair[1][0] * 2}] if flags[0] else None

    model = seeded(Nest())
    planned = apply(model, schedule_of(model, ((X, [X]), (True, None))))
    result = planned([X, (X,)], [True, None])
    assert isinstance(result, list)
    assert torch.equal(result[1]["b"], X * 2)
    with pytest.raises(BindError, match="'pair' must be a sequence of 2"):
        planned((X,), (True, None))
    with pytest.raises(BindError, match=r"'flags\.0' was True when planning, now it is False"):
        planned((X, [X]), (False, None))
