"""Steps whose results lie in one block: eager's to the bit, in whatever order forwards, backwards and other calls
come."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from remate.capture.capture_step import capture
from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate.step_measurement.beside_eager import try_schedule
from remate_runtime import EngineError, apply, predicted_peak
from remate_runtime.applied.planned_model import original_of
from remate_runtime.format.schedule import Dimension, Schedule

from ...models import ZOO
from ..compiled.subjects import Mixed
from ..compiled.test_random_models import Stack, flat, left_behind, plans, spatial
from ..sized import Attention, B, T, sized
from ..small import data, seeded
from ..stepping import (
    assert_same,
    everything,
    just_in_time,
    no_recomputes,
    planned_outputs,
    schedule_of,
    step,
    with_recomputes,
)
from ..test_memory import Deep
from .test_forms import bits


def arena(model: nn.Module, schedule: Schedule) -> Any:
    return apply(model, schedule, engine="arena")


def subject(recomputes: Any = just_in_time) -> tuple[Any, Any, torch.Tensor]:
    """A model, the same with its step in a block, and what they take."""
    model, x = seeded(Mixed(0.2)), data(64, 8)
    return model, arena(copy.deepcopy(model), _subjects_schedule(recomputes)), x


@functools.cache
def _subjects_schedule(recomputes: Any) -> Schedule:
    return schedule_of(seeded(Mixed(0.2)), (data(64, 8),), recomputes=recomputes)


def blocks_of(planned: Any) -> Any:
    """The blocks of memory that wait for a step."""
    (item,) = planned._remate_step.steps
    compile_: Any = item._steps._engine.start()
    (cell,) = [c.cell_contents for c in compile_.__closure__ if type(c.cell_contents).__name__ == "Blocks"]
    return list(cell._waiting.values())


def lies_in(tensor: torch.Tensor, block: Any) -> bool:
    return tensor.untyped_storage().data_ptr() == block.memory.untyped_storage().data_ptr()


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.data())
def test_random_models(draw: st.DataObject) -> None:
    makers, shape = draw.draw(st.sampled_from([(flat(), (6, 8)), (spatial(), (2, 8, 6, 6))]))
    layers = draw.draw(st.lists(st.sampled_from(range(len(makers))), min_size=1, max_size=4))
    model: Any = seeded(Stack([makers[at]() for at in layers]))
    x = data(*shape).requires_grad_(draw.draw(st.booleans()))
    captured = capture(model, (x,), differentiate=planned_outputs(model))
    recomputes = sorted(draw.draw(plans(captured.graph)), key=lambda recompute: recompute.before)
    planned = arena(copy.deepcopy(model), with_recomputes(captured, lambda graph: recomputes))
    for seed in range(3):
        assert_same(left_behind(planned, x, seed), left_behind(model, x, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_gpt", "unet"])  # the rest of the zoo is with the other engine's
def test_zoo(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.build()
    planned = arena(copy.deepcopy(model), schedule_of(model, args, kwargs, just_in_time))
    for seed in range(2):  # the first run looks at every result
        assert_same(step(planned, args, kwargs, seed), step(model, args, kwargs, seed), case.tolerance)


def same_life(life: Callable[[Any, torch.Tensor], Any], recomputes: Any = just_in_time) -> None:
    """That a loop does the same with both models, down to every tensor that it gathers."""
    model, planned, x = subject(recomputes)
    results = []
    for module in (planned, model):
        torch.manual_seed(0)
        module(x)[0].backward()  # a block waits from now on
        module.zero_grad()
        results.append(
            [t.detach().clone() for t in life(module, x)] + [p.grad for p in module.parameters() if p.grad is not None]
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_two_forwards_before_their_backwards() -> None:
    def life(model: Any, x: torch.Tensor) -> Any:
        left, right = model(x), model(2 * x)
        three = model(3 * x)
        right[0].backward()
        left[0].backward()
        (three[0] + three[1].sum()).backward()
        return *left, *right, *three

    same_life(life)


def test_outputs_and_gradients_that_are_kept_stay_what_they_are() -> None:
    def life(model: Any, x: torch.Tensor) -> Any:
        kept: list[torch.Tensor] = []
        for n in range(3):
            model.zero_grad(set_to_none=True)
            loss, features = model(x + n)
            loss.backward()
            kept += [loss, features, *(p.grad for p in model.parameters()), *model.buffers()]
        return kept

    same_life(life)


def test_calls_without_gradients_in_between() -> None:
    def life(model: Any, x: torch.Tensor) -> Any:
        outputs = model(x)
        with torch.no_grad():
            aside = model(2 * x)
        with torch.inference_mode():
            other = [t.clone() for t in model(3 * x)]
        outputs[0].backward()
        return *outputs, *aside, *other

    same_life(life)


@pytest.mark.slow
def test_a_step_within_a_hook_of_backward() -> None:
    def life(model: Any, x: torch.Tensor) -> Any:
        collected: list[torch.Tensor] = []

        def again(gradient: torch.Tensor) -> None:
            if not collected:
                with torch.enable_grad():
                    collected.extend(model(2 * x))
                collected[0].backward()

        handle = model.blocks[0].wide.weight.register_hook(again)
        loss, features = model(x)
        loss.backward()
        handle.remove()
        return loss, features, *collected

    same_life(life)


def test_an_exception_in_the_middle_of_a_step() -> None:
    model, planned, x = subject()
    wanted = step(model, (x,))
    step(planned, (x,))

    class Fails(TorchDispatchMode):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.left = at

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.left -= 1
            if not self.left:
                raise RuntimeError("stop")
            return func(*args, **(kwargs or {}))

    for at in (5, 60):
        with pytest.raises(RuntimeError, match="stop"), Fails(at):
            planned(x)[0].backward()
        for name, buffer in planned.named_buffers():
            buffer.copy_(dict(seeded(Mixed(0.2)).named_buffers())[name])
        planned.load_state_dict(seeded(Mixed(0.2)).state_dict())
        assert_same(step(planned, (x,)), wanted)
    assert len(blocks_of(planned)) == 1


def test_an_optimizer_in_backward() -> None:
    def life(model: Any, x: torch.Tensor) -> Any:
        def update(parameter: torch.Tensor) -> None:
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
            parameter.grad = None

        handles = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
        losses = []
        for _ in range(3):
            losses.append(model(x)[0])
            losses[-1].backward()
        for handle in handles:
            handle.remove()
        return *losses, *model.parameters()

    same_life(life)


def test_frozen_parameters() -> None:
    def life(model: Any, x: torch.Tensor) -> Any:
        kept = []
        for frozen in (model.one, model.tied.weight, model.blocks[1].wide.weight):
            frozen.requires_grad_(False)
            loss, _ = model(x)
            loss.backward()
            kept += [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
        return kept

    model, planned, x = subject()
    results = [
        [t.detach().clone() for t in life(module, x)] for module in (planned, model) if torch.manual_seed(0) is not None
    ]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_copies_and_pickles() -> None:
    model, planned, x = subject()
    wanted = step(model, (x,))
    step(planned, (x,))
    planned.load_state_dict(seeded(Mixed(0.2)).state_dict())
    for other in (copy.deepcopy(planned), pickle.loads(pickle.dumps(planned))):
        assert_same(step(other, (x,)), wanted)
        assert other._remate_how[2] == "arena"


def test_threads_have_blocks_of_their_own() -> None:
    model = seeded(Deep())
    planned = arena(copy.deepcopy(model), schedule_of(model, (data(64, 16),), recomputes=just_in_time))
    inputs = [data(64, 16, seed=n) for n in range(4)]
    by_name: dict[int, Any] = {}

    def work(n: int) -> None:
        for _ in range(5):
            by_name[n] = torch.autograd.grad(planned(inputs[n]), list(planned.parameters()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, x in enumerate(inputs):
        wanted = torch.autograd.grad(model(x), list(model.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(by_name[n], wanted, strict=True))


def test_one_block_waits_and_is_used_again() -> None:
    _, planned, x = subject()
    results = [planned(x) for _ in range(3)]
    assert blocks_of(planned) == []
    del results
    (block,) = blocks_of(planned)
    results = planned(x)
    assert blocks_of(planned) == []
    results[0].backward()
    assert blocks_of(planned) == [block]


@pytest.mark.quick("True")
@pytest.mark.parametrize("alias", [True, False])
def test_a_block_in_which_somebody_still_holds_a_tensor_is_left_to_them(alias: bool) -> None:
    _, planned, x = subject()
    step(planned, (x,))
    (block,) = blocks_of(planned)
    kept = block._slots.copy()
    inside = [t for t in kept if isinstance(t, torch.Tensor) and t.data_ptr() and lies_in(t, block)]
    aliases = [t.detach() if alias else t for t in inside[-1:]]
    del kept, inside
    assert aliases
    before = [bits(t).clone() for t in aliases]
    step(planned, (2 * x,))
    assert blocks_of(planned) != [block]
    assert all(torch.equal(bits(a), b) for a, b in zip(aliases, before, strict=True))


def test_sizes_share_a_block() -> None:
    model: Any = seeded(Attention())
    schedule = sized(
        schedule_of(model, (data(B, T, 6),), recomputes=just_in_time),
        b=Dimension(planned=B, min=2, max=64),
        t=Dimension(planned=T, min=2, max=64),
    )
    planned = arena(copy.deepcopy(model), schedule)
    for b, t in ((B, T), (4, 9), (20, 30), (4, 9)):
        x = data(b, t, 6)
        assert_same(step(planned, (x,)), step(model, (x,)))
    assert len(blocks_of(planned)) == 1


@pytest.mark.quick("drop-just_in_time")
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("between", [nn.Identity, nn.Dropout, lambda: nn.BatchNorm1d(16)], ids=["-", "drop", "norm"])
def test_measured_peak_is_at_most_the_predicted_one(between: Any, recomputes: Any) -> None:
    from msgspec.structs import replace

    model, x = seeded(Deep(between)), data(512, 16)
    captured = capture(model, (x,))
    schedule = with_recomputes(replace(captured, graph=costed(captured.graph)), recomputes)
    apply(copy.deepcopy(model), schedule)(x).backward()  # libraries warm up
    planned = apply(copy.deepcopy(model), schedule, engine="arena", verify="never")  # the step alone is measured
    predicted = predicted_peak(planned)

    def run() -> None:
        planned(x).backward()

    first = peak_bytes(run)
    planned.zero_grad()
    assert peak_bytes(run) < first  # the block is there
    assert 0.9 * predicted < first <= predicted


def test_parts_that_are_called_several_times_are_refused() -> None:
    from remate import plan

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for item in self.body:
                x = item(x)
            return x.sum()

    model, x = Two(), data(4, 8)
    schedule = plan(model, (x,), budget="100%", at="body.*", cost="h200")
    with pytest.raises(EngineError, match="of a part that is called several times"):
        apply(model, schedule, engine="arena")
    assert original_of(model) is model


@pytest.mark.slow
def test_what_a_trial_measures_counts_the_block() -> None:
    """It stays allocated between steps, and must not vanish from the peak of the second."""
    model, planned, x = subject()
    schedule, beyond = planned._remate_step.steps[0].schedule, []
    for engine in ("eager", "arena"):
        trial = try_schedule(model, (x,), {}, schedule, 2, engine=engine, curve=True)
        assert trial.difference == 0
        assert trial.curve is not None
        assert max(trial.curve.bytes) == trial.peak
        beyond.append(trial.peak - trial.predicted)
    assert beyond[0] == beyond[1] > 0  # the loss, which is made outside of the step
