"""Bytes that a step holds, to the byte: what is predicted is what the allocator sees, and nothing outlives its use."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import remate_runtime
from remate.capture.capture_step import capture
from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

from .small import Mlp, Tied, data, seeded
from .stepping import everything, just_in_time, no_recomputes, predicted_peak, schedule_of, with_recomputes


class Deep(nn.Module):
    """Parameters are small beside activations; the loss is inside."""

    def __init__(self, between: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), between()) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * 1.5 + x
        return x.pow(2).mean()


def _measured(model: nn.Module, *args: torch.Tensor) -> int:
    def run() -> None:
        model(*args).backward()

    for _ in range(2):  # the first step warms up
        model.zero_grad()
        peak = peak_bytes(run)
    model.zero_grad()
    return peak


@pytest.mark.quick("just_in_time-drop-2")
@pytest.mark.allocating
@pytest.mark.parametrize("rows", [2, 512])
@pytest.mark.parametrize("between", [nn.Identity, nn.Dropout, lambda: nn.BatchNorm1d(16)], ids=["-", "drop", "norm"])
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
def test_measured_peak_is_the_predicted_one(recomputes, between, rows):
    """To the byte: with few rows, states of the generator, the root gradient and buffer updates are most of the
    peak."""
    model, x = seeded(Deep(between)), data(rows, 16)
    captured = capture(model, (x,))
    schedule = with_recomputes(msgspec.structs.replace(captured, graph=costed(captured.graph)), recomputes)
    planned = apply(model, schedule)
    assert _measured(planned, x) == remate_runtime.predicted_peak(planned)


def test_without_recomputes_no_more_than_eager():
    model, x = seeded(Deep()), data(512, 16)
    planned = apply(copy.deepcopy(model), schedule_of(model, (x,), recomputes=no_recomputes))
    assert _measured(planned, x) <= _measured(model, x)


@pytest.mark.slow
def test_outputs_that_the_caller_dropped_die_at_their_last_use():
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 512), nn.Linear(512, 2048)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = torch.tanh(self.b(torch.tanh(self.a(x))))
            return out.pow(2).mean(), out

    model, x = seeded(Wide()), data(256, 16)
    planned = apply(copy.deepcopy(model), schedule_of(model, (x,), recomputes=no_recomputes))

    def measured(module: nn.Module) -> int:
        def run() -> None:
            module(x)[0].backward()

        run()
        module.zero_grad()
        return peak_bytes(run)

    assert measured(planned) <= measured(model)


def test_gradients_are_handed_over_not_copied():
    """A model that is nearly all parameters: a copied gradient would show at once."""
    model, x = seeded(nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))), data(2, 256)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).sum()

    whole = WithLoss()
    planned = apply(whole, schedule_of(whole, (x,), recomputes=no_recomputes))
    gradients = sum(p.numel() * 4 for p in whole.parameters())
    assert _measured(planned, x) < gradients * 1.05


@pytest.mark.eager
def test_tangents_die_at_their_last_use():
    """A loss outside of the model: its gradient is as large as the output, and must not last until backward ends."""
    model, x = seeded(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2048))), data(256, 16)
    planned = apply(copy.deepcopy(model), schedule_of(model, (x,), recomputes=no_recomputes))

    class Inspect(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            return out.view_as(out)

        @staticmethod
        def backward(ctx, tangent):
            given = tangent.clone()
            references.append(weakref.ref(given.untyped_storage()))
            return given

    references: list[weakref.ref] = []
    alive: list[bool] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if references and func is torch.ops.aten.mm.default:
                alive.append(references[0]() is not None)
            return func(*args, **(kwargs or {}))

    loss = Inspect.apply(planned(x)).sum()
    with Watch():
        loss.backward()
    assert alive == [True, True, False]  # both gradients of the second layer read it, that of the first comes last


@pytest.mark.slow
@pytest.mark.allocating
@pytest.mark.parametrize("make", [Mlp, Tied, Deep])
def test_outputs_dropped_without_backward_release_everything(make):
    """By reference counts alone: no cycle may keep a step's memory until the garbage collector runs."""
    model = seeded(make())
    x = torch.arange(5) if make is Tied else data(64, 16 if make is Deep else 8)
    planned = apply(model, schedule_of(model, (x,), recomputes=no_recomputes))
    planned(x)
    gc.collect()
    gc.disable()
    try:
        out = planned(x)
        mine = {id(t) for t in (*model.parameters(), *model.buffers(), x)}
        kept = [weakref.ref(t) for t in out.grad_fn.frame.residue if isinstance(t, torch.Tensor) and id(t) not in mine]
        assert kept
        del out
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.eager
@pytest.mark.parametrize("engine", ["eager", "arena", "compiled"])
@pytest.mark.parametrize("options", [{}, {"verify": True}, {"otherwise": "original"}], ids=str)
def test_a_model_is_freed_with_its_last_reference(engine, options):
    """As a model without a schedule: nothing that it has refers back to it."""
    model, x = seeded(Deep()), data(64, 16)
    schedule = schedule_of(model, (x,), recomputes=everything)
    gc.collect()
    gc.disable()
    try:
        planned = apply(model, schedule, engine=engine, **options)
        for _ in range(2):
            planned(x).backward()
        kept = [weakref.ref(parameter) for parameter in model.parameters()]
        del model, planned
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()


def test_backward_leaves_nothing_behind():
    model, x = seeded(Deep()), data(64, 16)
    planned = apply(model, schedule_of(model, (x,), recomputes=everything))
    loss = planned(x)
    frame = loss.grad_fn.frame
    loss.backward()
    assert frame.residue is None
    assert not frame.watched
    assert not any(t is not None for t in frame.tangents)


def test_no_grad_keeps_nothing():
    model, x = seeded(Deep()), data(512, 16)
    planned = apply(copy.deepcopy(model), schedule_of(model, (x,), recomputes=no_recomputes))

    def peak(module: nn.Module) -> int:
        def run() -> None:
            with torch.no_grad():
                module(x)

        run()
        return peak_bytes(run)

    assert peak(planned) <= peak(model)


class Reconstructing(nn.Module):
    """Returns a loss that PyTorch computes in a storage of the size of its argument, and the output it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(torch.relu(self.first(x)))
        return nn.functional.mse_loss(y, x), y


def test_a_loss_does_not_hold_the_elements_that_it_is_the_mean_of():
    model, x = seeded(Reconstructing()), data(128, 64)
    captured = capture(model, (x,))
    schedule = with_recomputes(msgspec.structs.replace(captured, graph=costed(captured.graph)), no_recomputes)
    planned = apply(model, schedule)

    def run() -> None:
        planned_schedule = planned(x)
        planned_schedule[0].backward()

    for _ in range(2):
        model.zero_grad()
        peak = peak_bytes(run)
    assert peak <= predicted_peak(schedule)


class ReturnsViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(self.linear(x))
        return x, x[:, 1:3], y.t(), y[:, ::2], y[0].expand(4, 16), self.linear.weight


def test_gradients_of_views_that_are_outputs():
    """The gradient of a view has no gaps, and outputs that are inputs are not copied."""
    model, x = seeded(ReturnsViews()), data(32, 16).requires_grad_()
    captured = capture(model, (x,))
    assert "aten.clone" not in {op.op for op in captured.graph.operations}
    schedule = schedule_of(model, (x,), recomputes=no_recomputes)
    assert predicted_peak(schedule) == simulate(link(captured.graph)).peak
    results = []
    for module in (model, apply(copy.deepcopy(model), schedule)):
        module.zero_grad()
        x.grad = None
        losses = [(k + 1) * y.pow(2).sum() for k, y in enumerate(module(x))]
        torch.stack(losses).sum().backward()
        results.append([x.grad, *(p.grad for p in module.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
