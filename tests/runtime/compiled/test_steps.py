"""Steps of the compiled engine against eager's: gradients, generators, buffers, and all that `apply` promises."""

from __future__ import annotations

import copy
import logging
import pickle
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from remate.step_measurement.allocator import peak_bytes
from remate_runtime import EngineError, ExecutionError, Schedule, apply, predicted_peak
from remate_runtime.engine.compiled import artefacts, compiled_engine, inductor
from remate_runtime.engine.compiled.artefacts import Function
from remate_runtime.engine.compiled.calls import SegmentCall
from remate_runtime.engine.compiled.segments import Segment
from remate_runtime.flat_step.graph import Graph

from ..small import data, seeded
from ..stepping import in_blocks, just_in_time
from .subjects import Mixed, assert_close, cheap, in_double, mixed, outcome


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return in_blocks(mixed()[0], (X,), cheap)


@pytest.fixture(scope="module")
def compiled(schedule: Schedule) -> Any:
    """A model with the compiled step. Tests put back what they change."""
    return apply(mixed()[0], schedule, engine="compiled")


def fresh(compiled: Any, p: float = 0.0) -> Any:
    """Eager's model in the state that the compiled one is in."""
    model = Mixed(p)
    model.load_state_dict(compiled.state_dict())
    return model


X, Y = data(64, 8), data(64, 8, seed=5)


@pytest.mark.slow
def test_several_steps_are_eagers(compiled: Any) -> None:
    eager = fresh(compiled)
    for seed in range(3):  # dropout: the state of the generator is that of the call; two forwards before backward
        batches = (X, Y) if seed else (X,)
        assert_close(outcome(compiled, *batches, seed=seed), outcome(eager, *batches, seed=seed))


@pytest.mark.slow
def test_blocks_that_draw_random_numbers() -> None:
    model = seeded(Mixed(0.3))
    compiled = apply(model, in_blocks(model, (X,), just_in_time), engine="compiled")
    eager = fresh(compiled, 0.3)
    for seed in range(3):
        assert_close(outcome(compiled, X, seed=seed), outcome(eager, X, seed=seed))


@pytest.mark.slow
def test_gradients_are_as_near_to_float64_as_eagers(compiled: Any) -> None:
    """Without dropout, which draws other numbers in float64."""
    eager, double = fresh(compiled), in_double(fresh(compiled))
    for model in (eager, double):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    still = apply(copy.deepcopy(eager), in_blocks(eager, (X,), cheap), engine="compiled")
    exact = outcome(double, X.double())
    far: list[float] = []
    for model in (still, eager):
        result = outcome(model, X)
        names = [name for name in exact if name.startswith("gradient")]
        far.append(max(float((result[name].double() - exact[name]).abs().max()) for name in names))  # type: ignore[union-attr, operator]
    assert far[0] <= 4 * far[1]


def test_gradients_that_are_equal_have_storages_of_their_own(compiled: Any) -> None:
    """Inductor makes one tensor of two equal sums."""
    for _ in range(2):  # the first run finds out, those that follow know
        outcome(compiled, X)
        left, right = compiled.one.grad, compiled.two.grad
        assert torch.equal(left, right)
        left.zero_()
        assert right.abs().max() > 0


def test_the_measured_peak_is_the_predicted_one(compiled: Any) -> None:
    def run() -> None:
        torch.manual_seed(0)
        loss, _features = compiled(X)
        loss.backward()

    for _ in range(2):
        compiled.zero_grad()
        measured = peak_bytes(run)
    compiled.zero_grad()
    assert measured == predicted_peak(compiled)


def test_outputs_are_as_they_were_when_backward_has_run(compiled: Any) -> None:
    eager = fresh(compiled)
    results = []
    for model in (compiled, eager):
        torch.manual_seed(3)
        model.zero_grad()
        loss, features = model(X)
        loss.backward()
        results.append(features.detach())
    assert torch.allclose(*results, atol=1e-6)


@pytest.mark.slow
def test_without_gradients_and_without_some(compiled: Any) -> None:
    eager = fresh(compiled)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            results = []
            for model in (compiled, eager):
                torch.manual_seed(1)
                results.append(model(X))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))
        assert not results[0][0].requires_grad
    assert_close(dict(compiled.named_buffers(prefix="gradient")), dict(eager.named_buffers(prefix="gradient")))
    for model in (compiled, eager):
        model.tied.weight.requires_grad_(False)
    try:
        assert_close(outcome(compiled, X), outcome(eager, X))
    finally:
        compiled.tied.weight.requires_grad_(True)


def test_what_backward_reads_must_not_change(compiled: Any) -> None:
    loss, _ = compiled(X)
    with torch.no_grad():
        compiled.tied.weight.add_(0.0)
    with pytest.raises(ExecutionError, match=r"parameter 'tied.weight' was modified in place"):
        loss.backward()


def test_gradients_arrive_during_backward_and_twice_is_refused(compiled: Any) -> None:
    seen: list[str] = []
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
        for name, parameter in compiled.named_parameters()
    ]
    loss, _ = compiled(X)
    loss.backward(retain_graph=True)
    assert sorted(seen) == sorted(name for name, _ in compiled.named_parameters())
    with pytest.raises(ExecutionError, match="a second time"):
        loss.backward()
    for hook in hooks:
        hook.remove()


@pytest.mark.slow
def test_pickles_are_compiled_too(compiled: Any) -> None:
    wanted = outcome(fresh(compiled), X)
    again = pickle.loads(pickle.dumps(compiled))
    assert again._remate_how[2] == "compiled"
    assert_close(outcome(again, X), wanted)


def test_a_segment_that_does_not_compile_is_interpreted(
    schedule: Schedule, compiled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = inductor.compiled, []

    def every_other(*given: Any) -> Any:
        calls.append(given)
        if len(calls) % 2:
            raise RuntimeError("no such luck\nmore")
        return real(*given)

    monkeypatch.setattr(artefacts, "compiled", every_other)
    monkeypatch.setattr(artefacts, "has_been_compiled", lambda tag: False)  # what is on disk is not at fault
    model = Mixed()
    model.load_state_dict(compiled.state_dict())
    again = apply(model, schedule, engine="compiled")
    assert "does not compile and is interpreted: no such luck" in caplog.text
    assert_close(outcome(again, X), outcome(fresh(compiled), X))


def test_results_that_are_not_as_declared_are_not_compiled() -> None:
    module = torch.fx.symbolic_trace(lambda x: (x.neg(),))
    kind = inductor_type("f32[4]")
    with pytest.raises(
        inductor.DoesNotCompileError, match=r"a result is f32\[4\] on cpu, the file declares f32\[2,2\]"
    ):
        inductor.compiled(module, (kind,), (inductor_type("f32[2,2]"),), (), (), torch.device("cpu"), "test")


def _call(call: SegmentCall, slots: list[Any], is_first: bool) -> None:
    """Run a segment as a step does in its first run or later."""
    instruction, graph = call.instruction, cast(Graph, None)  # a segment's first run reads no graph
    if is_first:
        assert instruction.first is not None
        instruction.first(slots, graph)
    else:
        instruction.run(slots)


def test_a_result_in_the_storage_of_another_is_copied_in_every_run() -> None:
    """However many runs there were that had to find out."""
    kind = inductor_type("f32[4]")
    about: Any = SimpleNamespace(input_types=(kind,), output_types=(kind, kind, kind), donated=())

    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = given
        given.clear()
        y = x + 1
        return [y, x, y]

    call = SegmentCall(
        Segment((), True, (0,), (1, 2, 3), ()), Function(about, "", function), "here", torch.device("cpu")
    )
    for is_first in (True, True, False):
        slots: list[Any] = [torch.arange(4.0), None, None, None]
        _call(call, slots, is_first)
        assert len({tensor.untyped_storage().data_ptr() for tensor in slots}) == 4
        assert [tensor.tolist() for tensor in slots[1:]] == [[1, 2, 3, 4], [0, 1, 2, 3], [1, 2, 3, 4]]


def test_inputs_that_lie_otherwise_are_laid_out_anew() -> None:
    kind = inductor_type("f32[2,3]")
    about: Any = SimpleNamespace(input_types=(kind,), output_types=(kind,), donated=())

    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        assert given[0].is_contiguous()
        return [given.pop() + 1]

    call = SegmentCall(Segment((), True, (0,), (1,), (0,)), Function(about, "", function), "here", torch.device("cpu"))
    for is_first in (True, False):
        slots: list[Any] = [torch.zeros(3, 2).t(), None]
        _call(call, slots, is_first)
        assert slots[0] is None
        assert torch.equal(slots[1], torch.ones(2, 3))


def test_constants_are_not_compiled() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.tensor, (2.0,)),))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(inductor.DoesNotCompileError, match="it has a constant"):
        inductor.compiled(module, (), (inductor_type("f32[]"),), (), (), torch.device("cpu"), "test")


def inductor_type(text: str) -> Any:
    from remate_runtime.format.tensor_type import parse_type

    return parse_type(text)


def test_without_a_compiler(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._inductor import cpp_builder

    def none() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(EngineError, match=r"'compiled' does not work here: torch finds no C\+\+ compiler"):
        apply(mixed()[0], schedule, engine="compiled")
    with caplog.at_level(logging.INFO, logger="remate_runtime"):
        model = apply(mixed()[0], schedule, engine="auto")
    assert "steps are interpreted: torch finds no C++ compiler" in caplog.text
    assert_close(outcome(model, X), outcome(mixed()[0], X))


def test_another_torch_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert "were tried with torch 2.11 to 2.15, not with 2.99.0" in inductor.unavailable()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    step: Any = None
    with pytest.raises(EngineError, match="'compiled' does not work for a model on cuda here: there is no CUDA device"):
        compiled_engine.COMPILED.start()(step, torch.device("cuda", 0))
