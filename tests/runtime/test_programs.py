"""Beside what makes programs of models: torch.compile leaves the step alone, the others say what to do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, aot_module, nop
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from remate_runtime import BindError, ExecutionError, SteppedAsideWarning, apply

from .small import Mlp, data, seeded
from .stepping import schedule_of


@pytest.fixture
def planned() -> Any:
    return apply(seeded(Mlp(0.3)), schedule_of(seeded(Mlp(0.3)), (data(4, 8),)))


def step(model: Any, run: Any) -> list[Any]:
    model.zero_grad()
    torch.manual_seed(0)
    loss = run(data(4, 8))
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def test_a_compiled_loop_leaves_the_step_alone(planned: Any) -> None:
    """torch.compile compiles the code around the model. Without help it would trace some fifty frames of the step."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()

    def loop(x: torch.Tensor) -> torch.Tensor:
        return planned(x * 2).square().mean()

    actual = step(planned, torch.compile(loop, backend="eager"))
    assert counters["frames"]["total"] <= 5
    calls = planned._remate_step.calls
    assert calls == 1
    for ours, wanted in zip(actual, step(planned, loop), strict=True):
        assert torch.equal(ours, wanted)
    assert torch.equal(
        step(planned, lambda x: torch.compile(planned, backend="eager")(x * 2).square().mean())[0], actual[0]
    )
    assert planned._remate_step.calls == calls + 2


def test_compiling_the_model_says_that_it_changes_nothing(planned: Any) -> None:
    with pytest.warns(UserWarning, match="does not compile a model with a schedule") as told:
        torch.compile(planned, backend="eager")(data(4, 8))
    assert sum("schedule" in str(one.message) for one in told) == 1


def test_compiling_it_in_place_says_so_once(planned: Any) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        planned.compile(backend="eager")
        planned(data(4, 8))
    assert sum("does not compile a model with a schedule" in str(one.message) for one in told) == 1


def test_compiling_the_loop_says_nothing(planned: Any) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.compile(lambda x: planned(x) * 2, backend="eager")(data(4, 8))
    assert not [one for one in told if "schedule" in str(one.message)]


def test_a_model_that_was_compiled_in_place_still_runs_its_schedule() -> None:
    model = seeded(Mlp(0.3))
    planned = apply(model, schedule_of(model, (data(4, 8),)))
    model.compile(backend="eager")
    planned(data(4, 8))
    assert planned._remate_step.calls == 1
    planned.compile(backend="eager")
    planned(data(4, 8))
    assert planned._remate_step.calls == 2
    assert model._compiled_call_impl is not planned._compiled_call_impl is not None


def test_what_torch_compile_made_takes_no_schedule(planned: Any) -> None:
    compiled: Any = torch.compile(seeded(Mlp(0.3)))
    with pytest.raises(BindError, match=r"this is a result of torch.compile(.|\n)*apply it to the original model"):
        apply(compiled, planned._remate_step.steps[0].schedule)


@pytest.mark.quick("trace")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", ["export", "script", "trace", "fx", "fx around", "make_fx", "aot", "aot module"])
def test_other_programs_are_refused_in_one_sentence(planned: Any, make: str) -> None:
    makers: dict[str, Any] = {
        "export": lambda: torch.export.export(planned, (data(4, 8),)),
        "script": lambda: torch.jit.script(planned),
        "trace": lambda: torch.jit.trace(planned, (data(4, 8),)),
        "fx": lambda: torch.fx.symbolic_trace(planned),
        "fx around": lambda: torch.fx.symbolic_trace(nn.Sequential(planned)),
        "make_fx": lambda: make_fx(planned)(data(4, 8)),
        "aot": lambda: aot_function(lambda x: planned(x), nop)(data(4, 8)),
        "aot module": lambda: aot_module(planned, nop)(data(4, 8)),
    }
    with pytest.raises(
        (AttributeError, ExecutionError), match=r"cannot be exported, scripted or traced(.|\n)*pass the original model"
    ):
        makers[make]()
    assert len(step(planned, lambda x: planned(x).sum())) == 5


def test_warnings_name_the_line_of_the_call(planned: Any) -> None:
    planned.eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        planned(data(4, 8))  # here
    assert [warning.category for warning in caught] == [SteppedAsideWarning]
    assert "# here" in Path(caught[0].filename).read_text().splitlines()[caught[0].lineno - 1]
