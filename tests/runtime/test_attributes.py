"""Attributes that forward sets to tensors: loops read auxiliary losses and activations from the modules after the
call."""

from __future__ import annotations

import copy

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.errors import CaptureError
from remate_runtime import BindError, ExecutionError, apply
from remate_runtime.format import fingerprint

from .small import data, seeded
from .stepping import schedule_of

X = data(8, 16)


class Gate(nn.Module):
    """A mixture's gate: its balance is an auxiliary loss, its probabilities are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.aux, self.kept = nn.Linear(16, 16), None, None

    def forward(self, x):
        gate = torch.softmax(self.linear(x), -1)
        self.aux = gate.mean(0).square().sum()
        self.kept = {"gate": gate.detach(), "pair": [gate, 3]}
        return x * gate


class Gated(nn.Module):
    def __init__(self, returns=True) -> None:
        super().__init__()
        self.gates, self.out, self.returns = nn.ModuleList([Gate(), Gate()]), nn.Linear(16, 16), returns

    def forward(self, x):
        for gate in self.gates:
            x = gate(torch.tanh(x))
        self.loss = self.out(x).square().mean()
        return self.loss if self.returns else None


def loss_of(model, x=X):
    out = model(x)
    return (model.loss if out is None else out) + 0.1 * sum(gate.aux for gate in model.gates)


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("called_before", [False, True])
def test_losses_in_attributes_have_eagers_gradients(returns, called_before):
    eager, model = seeded(Gated(returns)), seeded(Gated(returns))
    if called_before:
        eager(X)
        model(X)
    planned = apply(model, remate.plan(model, (X,), budget="100%"))
    for step in range(3):
        for net in (eager, planned):
            net.zero_grad()
            loss_of(net, X + step).backward()
        for ours, theirs in zip(planned.parameters(), eager.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)
        assert torch.equal(model.gates[1].kept["gate"], eager.gates[1].kept["gate"])
        assert model.gates[0].kept["pair"][1] == 3
        with torch.no_grad():
            for tensors in zip(planned.parameters(), eager.parameters(), strict=True):
                for tensor in tensors:
                    tensor -= 0.1 * tensor.grad


def test_a_call_without_gradients_sets_them_too():
    model = seeded(Gated())
    planned = apply(model, schedule_of(model, (X,)))
    with torch.no_grad():
        planned(X)
    expected = copy.deepcopy(seeded(Gated()))
    expected(X)
    assert torch.equal(model.gates[0].aux, expected.gates[0].aux)


def test_each_call_sets_new_tensors():
    class Last(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x).detach()
            return self.last.sum() + super().forward(x).sum()

    model = seeded(Last(16, 4))
    model(X)  # the attribute is a plain tensor now, which capture lends to the tracer as a buffer
    planned = apply(model, schedule_of(model, (X,)))
    planned(X)
    first = model.last
    planned(X + 1)
    assert not torch.equal(first, model.last)


def test_state_that_forward_reads_and_sets_goes_on():
    class State(nn.Linear):
        def __init__(self) -> None:
            super().__init__(16, 16)
            self.state = torch.zeros(16)

        def forward(self, x):
            y = torch.tanh(super().forward(x) + self.state)
            self.state = y.detach().mean(0)
            return y.sum()

    eager, model = seeded(State()), seeded(State())
    planned = apply(model, schedule_of(model, (X,)))
    for step in range(3):
        assert torch.equal(planned(X + step), eager(X + step))
        assert torch.equal(model.state, eager.state)


def test_an_activation_refuses_a_gradient_unless_planned_with_it():
    model = seeded(Gated())
    planned = apply(model, schedule_of(model, (X,)))
    planned(X)
    with pytest.raises(ExecutionError, match=r"gates\.0\.kept\.pair\.0"):
        model.gates[0].kept["pair"][0].sum().backward()
    planned = apply(model, remate.plan(model, (X,), budget="100%", differentiate=["gates.0.kept.pair.0"]))
    planned(X)
    model.gates[0].kept["pair"][0].sum().backward()
    got = model.gates[0].linear.weight.grad
    expected = seeded(Gated())
    expected(X)
    expected.gates[0].kept["pair"][0].sum().backward()
    assert torch.equal(got, expected.gates[0].linear.weight.grad)


class Appending(nn.Linear):
    def __init__(self, detach) -> None:
        super().__init__(16, 16)
        self.losses, self.detach = [], detach

    def forward(self, x):
        y = super().forward(x)
        self.losses.append(y.mean().detach() if self.detach else y.mean())
        return y.sum()


def test_what_is_appended_with_a_gradient_is_refused():
    with pytest.raises(CaptureError, match="gradient in losses"):
        remate.plan(Appending(False), (X,), budget="100%")


def test_what_is_appended_without_a_gradient_is_told():
    with pytest.warns(UserWarning, match="leaves tensors in losses"):
        remate.plan(Appending(True), (X,), budget="100%")


def renamed(schedule, path):
    """The same schedule, which sets the attribute at `path` in place of `loss`."""
    outputs = copy.deepcopy(schedule.model.outputs)
    outputs["attributes"][path] = outputs["attributes"].pop("loss")
    changed = replace(schedule, model=replace(schedule.model, outputs=outputs), digest=None)
    return replace(changed, model=replace(changed.model, fingerprint=fingerprint(changed)))


class Own(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def extra(self) -> None: ...

    @property
    def half(self) -> int:
        return 3


@pytest.mark.quick("out")
@pytest.mark.parametrize("name", ["out", "count", "out.weight", "forward", "training", "extra", "half", "_parameters"])
def test_only_plain_attributes_are_set(name):
    model = seeded(Own())
    schedule = renamed(schedule_of(model, (X,)), name)
    with pytest.raises(BindError, match="not a plain attribute"):
        apply(model, schedule)


def test_a_module_that_is_not_there_is_named():
    model = seeded(Gated())
    schedule = renamed(schedule_of(model, (X,)), "gates.7.aux")
    with pytest.raises(BindError, match=r"no module 'gates\.7'"):
        apply(model, schedule)


def test_lists_of_the_models_own_parameters_are_no_outputs():
    model = seeded(nn.LSTM(4, 5))  # lists its weights in `_flat_weights`, which the tracer replaces
    schedule = schedule_of(model, (data(3, 2, 4),))
    assert "attributes" not in schedule.model.outputs
