"""Errors of capture name the module, the line and the remedy, and never show a raw traceback."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.capture.capture_step import CaptureError, capture
from remate_runtime import apply
from remate_runtime.format import encode
from tests.planner.interpreter import same_state, state


class Inner(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, a: torch.Tensor) -> Any:
        return self.function(self, self.linear(a))


class Outer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Inner(function)])

    def forward(self, a: torch.Tensor) -> Any:
        for layer in self.layers:
            a = layer(a)
        return a


def x() -> torch.Tensor:
    return torch.ones(3, 4)


def failure(function: Any, **options: Any) -> CaptureError:
    """The error of a model whose module `layers.1` calls `function`. The state of the model must not change."""
    model = Outer(function)
    before = state(model)
    with pytest.raises(CaptureError) as caught:
        capture(model, (x(),), **options)
    assert same_state(before, state(model))
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 800
    return caught.value


def located(function: Any) -> CaptureError:
    error = failure(function)
    assert error.module == "layers.1", str(error)
    assert error.source.startswith("test_capture_errors.py:"), str(error)
    assert error.hint
    return error


@torch.library.custom_op("remate_tests::scribble", mutates_args=("a",))
def scribble(a: torch.Tensor) -> None:
    a.add_(1)


@torch.library.custom_op("remate_tests::shapeless", mutates_args=())
def shapeless(a: torch.Tensor) -> torch.Tensor:
    return a.clone()


def _item(self: Any, a: torch.Tensor) -> Any:
    return a * a.sum().item()


def _branch(self: Any, a: torch.Tensor) -> Any:
    return a if a.sum() > 0 else -a


def _nonzero(self: Any, a: torch.Tensor) -> Any:
    return a[a > 0].sum()


def _numpy(self: Any, a: torch.Tensor) -> Any:
    return torch.from_numpy(a.detach().numpy()) + a


def _large_constant(self: Any, a: torch.Tensor) -> Any:
    return a * torch.tensor([1.0] * 70_000).sum()


def _cond(self: Any, a: torch.Tensor) -> Any:
    return torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,))


def _parameter_write(self: Any, a: torch.Tensor) -> Any:
    with torch.no_grad():
        self.linear.bias.mul_(0.5)
    return a


def _broken(self: Any, a: torch.Tensor) -> Any:
    return a @ torch.ones(7, 7)


def _mutating_operator(self: Any, a: torch.Tensor) -> Any:
    b = a.detach().clone()
    scribble(b)
    return a * b


COUNTS = torch.zeros(4)


def _global_write(self: Any, a: torch.Tensor) -> Any:
    COUNTS.add_(1)
    return a * COUNTS


def _ended(self: Any, a: torch.Tensor) -> Any:
    return a * next(iter(()))


def _shapeless(self: Any, a: torch.Tensor) -> Any:
    return a * shapeless(a.detach())


@pytest.mark.quick("scribble")
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_item, "reads a tensor's value"),
        (_branch, "reads a tensor's value"),
        (_nonzero, "depends on the data"),
        (_numpy, "numpy"),
        (_large_constant, "70000 elements"),
        (_cond, "cond"),
        (_broken, "[7, 7]"),
        (_mutating_operator, "scribble"),
        (_shapeless, "shapeless"),
        (_ended, "iterator, which ended"),
    ],
)
def test_located(function: Any, text: str) -> None:
    assert text in str(located(function))


def test_written_global() -> None:
    error = failure(_global_write)
    assert "neither an input, a parameter nor a buffer" in str(error)
    assert error.source.startswith("test_capture_errors.py:")
    assert "register_buffer" in error.hint


@pytest.mark.slow
def test_written_buffer_of_a_module_that_is_not_registered() -> None:
    class Listing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norms = nn.Linear(4, 4), [nn.BatchNorm1d(4).requires_grad_(False)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norms[0](self.layer(x))

    with pytest.raises(CaptureError, match="neither an input, a parameter nor a buffer") as caught:
        remate.plan(Listing(), (torch.randn(8, 4),), budget="100%", cost="cpu", progress=None)
    assert "a module in a plain list" in caught.value.hint


def test_written_parameter() -> None:
    assert "'layers.1.linear.bias'" in str(failure(_parameter_write))


def test_written_input() -> None:
    class Writes(nn.Linear):
        def forward(self, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            a.mul_(2)
            return super().forward(a)

    with pytest.raises(CaptureError, match="writes into input 'a'"):
        capture(Writes(4, 4), (x(),))


def test_sparse_gradient() -> None:
    with pytest.raises(CaptureError, match="sparse=False"):
        capture(nn.Embedding(5, 4, sparse=True), (torch.tensor([1, 2]),))


def test_output_without_gradient_cannot_be_differentiated() -> None:
    error = failure(lambda self, a: {"y": a, "index": a.argmax()}, differentiate=["index"])
    assert "'index'" in str(error)
    assert "y" in error.hint


def test_no_tensor_returned() -> None:
    assert "returns no tensor" in str(failure(lambda self, a: None))


def test_input_of_an_odd_type() -> None:
    with pytest.raises(CaptureError, match=r"input 'a'.*object"):
        capture(Outer(lambda self, a: a), (object(),))


def test_buffer_that_changes_shape() -> None:
    model = Outer(lambda self, a: a)
    model.register_buffer("seen", torch.zeros(1))
    forward = model.forward

    def grows(a: torch.Tensor) -> torch.Tensor:
        model.seen = torch.zeros(2) + a.sum()
        return forward(a)

    model.forward = grows  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match="'seen'"):
        capture(model, (x(),))


def test_lazy_model() -> None:
    with pytest.raises(CaptureError, match="no shape yet"):
        capture(nn.LazyLinear(3), (x(),))


def test_torchscript() -> None:
    with pytest.raises(CaptureError, match="TorchScript"):
        capture(nn.Sequential(torch.jit.script(nn.Linear(4, 4))), (x(),))


def test_not_a_module() -> None:
    with pytest.raises(CaptureError, match="Module"):
        capture(len, (x(),))  # type: ignore[arg-type]


def test_wrong_arguments() -> None:
    with pytest.raises(CaptureError, match="argument"):
        capture(nn.Linear(4, 4), (x(), x()))


def test_tensor_that_needs_a_gradient_but_is_no_parameter() -> None:
    weight = torch.ones(4, requires_grad=True)
    assert "no parameter" in str(failure(lambda self, a: a * weight))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (lambda: nn.Embedding(8, 4, max_norm=1.0), r"Embedding\(max_norm=1.0\) writes into its weight.*'inner.layer'"),
        (lambda: nn.EmbeddingBag(8, 4, max_norm=1.0), r"EmbeddingBag\(max_norm=1.0\)"),
        (
            lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
            r"torch.nn.utils.spectral_norm.*'inner.layer'.*\n.*parametrizations",
        ),
    ],
    ids=["embedding", "bag", "spectral_norm"],
)
def test_layers_that_no_schedule_can_hold_are_named(layer: Any, told: str) -> None:
    model = nn.ModuleDict({"inner": nn.ModuleDict({"layer": layer()})})
    with pytest.raises(CaptureError, match=told):
        capture(model, (x(),))


def test_a_part_that_has_a_schedule_is_named() -> None:
    inner = nn.Linear(4, 4)
    planned = remate.plan(inner, (x(),), budget="100%", cost="cpu")
    model = nn.Sequential(nn.Linear(4, 4), apply(inner, planned))
    with pytest.raises(CaptureError, match=r"it has a schedule of its own.*'1'"):
        capture(model, (x(),))
    again = remate.plan(apply(inner, planned), (x(),), budget="100%", cost="cpu")  # stands for `inner`
    assert encode(again) == encode(planned)


@pytest.mark.parametrize("kept", [True, False])
def test_a_generator_of_the_models_own(kept: bool) -> None:
    own = torch.Generator().manual_seed(1)

    def function(_: Any, a: torch.Tensor) -> torch.Tensor:
        return a + torch.randn(3, 4, generator=own if kept else torch.Generator())

    assert "torch.Generator" in str(located(function))


def test_nothing_is_proposed_where_nothing_is_left() -> None:
    assert "at=" not in str(failure(lambda self, a: a * a.sum().item()))


def test_what_tracing_would_take_for_nothing():
    def buffer(module, a):
        module.linear.weight.data = module.linear.weight.data.sign()
        return module.linear(a)

    def intermediate(module, a):
        b = a * 2
        b.data = a.detach() * 5
        return b

    for function in (buffer, intermediate):
        assert "assigns `.data`" in located(function).message
    assert "reads `.grad`" in located(lambda module, a: a if module.linear.weight.grad is None else a * 2).message
    assert "calls backward()" in located(lambda module, a: (a.sum().backward(), a)[1]).message


class Filling(nn.Linear):
    """Adds an item to a container in its arguments."""

    def __init__(self, put: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__(4, 4)
        self.put = put

    def forward(self, a: torch.Tensor, store: Any) -> Any:
        outputs = super().forward(a)
        result = self.put(store, outputs)
        return outputs if result is None else result


def test_what_forward_puts_into_its_arguments():
    """A step would leave it out, and a loss that is made of it would train nothing."""
    for put, store in (
        (lambda store, output: store.append(output * 2), []),
        (lambda store, output: store.update(k=output * 2), {"k": x()}),
        (lambda store, output: store.update({1: output * 2}), {}),
        (lambda store, output: store["inner"].append(output * 2), {"inner": []}),
    ):
        with pytest.raises(CaptureError, match="have a gradient in its argument 'store'"):
            capture(Filling(put), (x(), store))
    for put in (
        lambda store, output: store.append(output.detach()),
        lambda store, output: (store.append(output), store)[1],
    ):
        with pytest.warns(UserWarning, match="leaves tensors in its argument 'store'"):
            capture(Filling(put), (x(), []))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(Filling(lambda store, output: output * store.pop("k")), (x(), {"k": x()}))


def test_what_forward_sets_of_a_config():
    class Noting(nn.Linear):
        def __init__(self, detached: bool) -> None:
            super().__init__(4, 4)
            self.config, self.detached = SimpleNamespace(loss=None), detached

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(a)
            self.config.loss = outputs.detach() if self.detached else outputs.square().mean()
            return outputs

    model = Noting(False)
    with pytest.raises(CaptureError, match=r"have a gradient in config\.loss"):
        capture(model, (x(),))
    assert model.config.loss is None
    with pytest.warns(UserWarning, match=r"leaves tensors in config\.loss"):
        capture(Noting(True), (x(),))


class Clock:
    """State outside of the model: a global, a closure, an iterator."""

    def __init__(self) -> None:
        self.ticks, self.rates = 0, iter([float(n) for n in range(1, 50)])

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks


@pytest.mark.slow
def test_state_that_no_module_has():
    clock = Clock()
    for function in (
        lambda module, a: a * clock.tick(),
        lambda module, a: a * next(clock.rates),
        lambda module, a: a * time.perf_counter(),
        lambda module, a: torch.relu(a) if clock.tick() % 2 else torch.tanh(a),
        lambda module, a: a.reshape(-1)[: clock.tick()],
    ):
        assert "something else" in failure(function).message
    assert "something else" in failure(lambda module, a: torch.relu(a) if clock.tick() % 2 else a).message


def test_parameters_that_come_with_the_first_call():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3))
    with pytest.raises(CaptureError, match="no shape yet") as caught:
        remate.plan(model, (x(),), budget="100%")
    assert "once" in caught.value.hint


@pytest.mark.slow
def test_an_encoder_that_looks_at_its_mask_is_told_the_argument_that_says_it():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
    with pytest.raises(CaptureError, match="say is_causal=True"):
        capture(model, (torch.zeros(2, 4, 8), mask))
    capture(model, (torch.zeros(2, 4, 8), mask), {"is_causal": True})
