"""What people do with a model beside training it: state dicts, meta devices, anomaly mode, torch.func, copies in
files."""

from __future__ import annotations

import copy
import io
import tempfile
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from remate_runtime import BindError, ExecutionError, apply
from remate_runtime.engine.compiled.inductor import unavailable
from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.schedule import Schedule

from . import stepping
from .small import Mlp, Normed, data, seeded
from .stepping import assert_same, just_in_time, schedule_of, step

X = data(4, 8)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return schedule_of(seeded(Mlp()), (X,))


def trained(schedule: Schedule) -> Any:
    """A planned model with other weights than at first."""
    planned = apply(seeded(Mlp()), schedule)
    with torch.no_grad():
        for parameter in planned.parameters():
            parameter.mul_(1.5)
    return planned


def test_parameters_that_are_computed_for_the_call(schedule: Schedule) -> None:
    """`functional_call` with tensors that have a history (hypernetworks, learned learning rates), some or all of
    them."""
    planned, eager = apply(seeded(Mlp()), schedule), seeded(Mlp())
    for names in (["a.weight"], ["a.weight", "a.bias", "b.weight", "b.bias"]):
        results = []
        for module in (planned, eager):
            scale = torch.full((), 2.0, requires_grad=True)
            swapped = {name: dict(eager.named_parameters())[name].detach() * scale for name in names}
            out = functional_call(module, swapped, (X,))
            results.append([out, *torch.autograd.grad(out.square().sum(), [scale])])
        for ours, wanted in zip(*results, strict=True):
            assert torch.equal(ours, wanted)
    assert planned._remate_step.calls == 2


@pytest.mark.quick("False")
@pytest.mark.parametrize("planned_with_grad", [False, True])
def test_gradients_in_batches_are_refused_in_one_sentence(planned_with_grad: bool) -> None:
    x = data(4, 8).requires_grad_(planned_with_grad)
    planned = apply(seeded(Mlp()), schedule_of(seeded(Mlp()), (x,)))
    out = planned(x)
    many = torch.eye(32).reshape(32, 4, 8)
    with pytest.raises(ExecutionError, match=r"no gradients in batches(.|\n)*use the original model"):
        torch.autograd.grad(out, list(planned.parameters()), many, is_grads_batched=True)
    if planned_with_grad:
        with pytest.raises(ExecutionError, match="no gradients in batches"):
            torch.autograd.functional.jacobian(lambda given: planned(given).sum(0), x, vectorize=True)
    assert_same(step(planned, (x,)), step(seeded(Mlp()), (x,)))


@pytest.mark.quick("True")
@pytest.mark.parametrize("reentrant", [False, True])
def test_within_a_checkpoint_and_hooks_of_what_is_saved(reentrant: bool) -> None:
    """A scheduled part of a larger model may be inside a checkpoint, or inside hooks that offload to host memory."""
    planned, eager = apply(seeded(Mlp()), schedule_of(seeded(Mlp()), (data(4, 8).requires_grad_(),))), seeded(Mlp())
    results = []
    for module in (planned, eager):
        x = data(4, 8).requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            checkpoint(module, x * 1, use_reentrant=reentrant).sum().backward()
        results.append([x.grad, *(p.grad for p in module.parameters())])
    for ours, wanted in zip(*results, strict=True):
        assert torch.equal(ours, wanted)
    # What a step keeps is its own: other means see no saved tensors, so that only the reentrant kind runs forward
    # again.
    assert planned._remate_step.calls == (2 if reentrant else 1)


def test_a_checkpoint_that_would_update_buffers_twice_is_reported() -> None:
    x = data(4, 8)
    model = seeded(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)))
    planned = apply(model, schedule_of(model, (x.requires_grad_(),)))
    with pytest.warns(UserWarning, match="updates its buffers"):
        checkpoint(planned, x, use_reentrant=False).sum().backward()
    assert model.get_buffer("1.num_batches_tracked") == 1


def test_anomaly_mode_finds_the_step_and_leaves_gradients_alone(schedule: Schedule) -> None:
    planned, eager = apply(seeded(Mlp()), schedule), seeded(Mlp())
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with torch.autograd.set_detect_anomaly(True):
            assert_same(step(planned, (X,)), step(eager, (X,)))
            with pytest.raises(RuntimeError, match="'_StepBackward' returned nan values"):
                planned(X * float("inf")).sum().backward()
            with pytest.raises(RuntimeError, match="'MulBackward0' returned nan"):
                (planned(X) * float("nan")).sum().backward()


def test_values_that_are_not_finite_are_eagers(schedule: Schedule) -> None:
    """NaN checks look at outputs, losses and gradients; also those of hooks on the model."""
    planned, seen = apply(seeded(Mlp()), schedule), []
    planned.register_forward_hook(lambda module, args, out: seen.append(bool(out.isfinite().all())))
    x = X.clone()
    x[0, 0] = float("nan")
    for module in (planned, seeded(Mlp())):
        module.zero_grad()
        module(x).sum().backward()
        seen.append([int(p.grad.isnan().sum()) for p in module.parameters()])
    finite, ours, wanted = seen
    assert not finite
    assert ours == wanted
    assert sum(wanted)


def test_the_model_in_a_file_goes_on_by_its_schedule(schedule: Schedule) -> None:
    planned = trained(schedule)
    file = io.BytesIO()
    torch.save(planned, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert_same(step(loaded, (X,)), step(planned, (X,)))
    assert loaded._remate_step.calls == 1
    assert loaded.state_dict().keys() == seeded(Mlp()).state_dict().keys()


def test_distributed_checkpoints(schedule: Schedule) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    first, second = trained(schedule), apply(seeded(Mlp()), schedule)
    optimizers = [torch.optim.AdamW(model.parameters()) for model in (first, second)]
    step(first, (X,))
    optimizers[0].step()
    states = [get_state_dict(*pair) for pair in zip((first, second), optimizers, strict=True)]
    assert states[0][0].keys() == seeded(Mlp()).state_dict().keys()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: no process group
        save({"model": states[0][0], "optimizer": states[0][1]}, checkpoint_id=folder, no_dist=True)
        load({"model": states[1][0], "optimizer": states[1][1]}, checkpoint_id=folder, no_dist=True)
    set_state_dict(second, optimizers[1], model_state_dict=states[1][0], optim_state_dict=states[1][1])
    for model, optimizer in zip((first, second), optimizers, strict=True):
        step(model, (X,))
        optimizer.step()
    assert_same(step(second, (X,)), step(first, (X,)))


@pytest.mark.quick("x1-to_empty")
@pytest.mark.compiled
@pytest.mark.parametrize("how", ["to_empty", "assign"])
@pytest.mark.parametrize(("make", "x"), [(Mlp, X), (Normed, data(2, 3, 8, 8))])
def test_a_model_that_gets_its_values_after_the_schedule(make: Any, x: torch.Tensor, how: str) -> None:
    eager: nn.Module = seeded(make())
    schedule = schedule_of(copy.deepcopy(eager), (x,))
    with torch.device("meta"):
        planned = apply(make(), schedule)
    for given in (x, x.to("meta")):
        with pytest.raises(BindError, match=r"on the meta device(.|\n)*to_empty"):
            planned(given)
    if how == "to_empty":
        planned.to_empty(device="cpu")
    planned.load_state_dict(copy.deepcopy(eager.state_dict()), assign=how == "assign")
    assert_same(step(planned, (x,)), step(eager, (x,)))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", pytest.param("auto", marks=pytest.mark.slow)])
def test_operations_are_ranges_of_the_profiler_where_that_is_requested_for(engine: str) -> None:
    if engine == "auto" and unavailable():
        pytest.skip("no compiler")
    model: Any = nn.Sequential(seeded(Mlp(0.3)))
    schedule = schedule_of(model, (X,), recomputes=just_in_time)
    opened = expand(schedule)
    runs = Counter(op.id for op in opened.graph.operations)
    recomputes = Counter(f"{opened.graph.operations[op.op].id} (recompute)" for op in opened.recomputes)
    wanted = runs + recomputes
    assert sum(recomputes.values()) > 1
    for requested in (True, False):
        planned = apply(model, schedule, engine=engine, record_functions=requested)
        for module in (
            planned,
            planned,
            copy.deepcopy(planned),
        ):  # the first run checks results, and so does that of a copy
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                module(X).sum().backward()
            result = Counter(event.name for event in seen.events() or ())
            if engine == "eager" and not stepping.ROUNDING:
                assert Counter({name: result[name] for name in wanted}) == (
                    wanted if requested else Counter(dict.fromkeys(wanted, 0))
                )
            else:  # dropout is interpreted, the rest is within segments that are reported by their first and last operation
                assert result["model.0.drop.native_dropout (recompute)"] == (2 if requested else 0)
                assert any(" … " in name for name in result) == requested
