"""`remate.auto`: one line, and the loop that stands there is eager's to the bit, the planned call included."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remate
from remate.api.rebind import rebind
from remate.api.replan import prepare_again, replan
from remate.errors import InfeasibleError, UnknownNameError
from remate.training import state_of
from remate_runtime import StaleModelError, SteppedAsideWarning, apply, load

from ..runtime.small import data, seeded
from ..runtime.test_loops import EQUAL, Make, net

QUICK: dict[str, Any] = {"budget": "95%", "cost": "cpu", "effort": "quick", "progress": None}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))]
        self.body, self.head, self.scale = nn.Sequential(*blocks), nn.Linear(16, 4), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) * self.scale


def made() -> Any:
    return seeded(Net()).train()


def automatic(**more: Any) -> Any:
    return remate.auto(made(), **dict(QUICK, **more))


def train(model: Any, sizes: Sequence[int] = (64, 64), optimizer: Any = None) -> list[Any]:
    """Losses, what the model is at the end, and the states of the generators."""
    torch.manual_seed(3)
    random.seed(3)
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    losses = []
    for size in sizes:
        loss = F.cross_entropy(model(data(size, 16, seed=size)), torch.arange(size) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, [t.tolist() for t in model.state_dict().values()], torch.rand(2).tolist(), random.random()]


def ran(model: Any) -> int:
    """Calls that a schedule answered."""
    state = state_of(model)
    return 0 if state is None or state._scheduled is None else state._scheduled._remate_step.calls


@pytest.mark.slow
def test_nothing_happens_before_the_first_training_call_and_that_call_is_scheduled() -> None:
    model, wanted = automatic(), train(made())
    state = state_of(model)
    assert state is not None
    model.eval()
    model(data(2, 16))
    with torch.no_grad():
        model.train()(data(2, 16))
    assert state.outcome.schedules == ()
    assert train(model) == wanted
    (schedule,) = state.outcome.schedules
    assert state.outcome.planned
    assert schedule.solve.peak < schedule.solve.baseline_peak
    assert ran(model) == 2


def test_it_is_the_model_itself() -> None:
    model = made()
    optimizer = torch.optim.Adam(model.parameters())
    names = [name for name, _ in model.named_modules()]
    assert remate.auto(model, **QUICK, dims=None) is model
    assert isinstance(model, Net)
    assert (type(model).__name__, type(model).__module__) == (Net.__name__, Net.__module__)
    assert [name for name, _ in model.named_modules()] == names
    assert train(model, optimizer=optimizer) == train(made())
    assert model.to(torch.float64).head.weight.dtype == torch.float64
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net
    assert type(type(model)()(data(2, 16))) is torch.Tensor  # somebody else's instance of its class


@pytest.mark.slow
def test_smaller_batches_run_and_a_batch_of_one_does_so_by_its_own_forward() -> None:
    sizes = (64, 64, 20, 1)
    wanted = train(made(), sizes)
    model = automatic()
    with pytest.warns(SteppedAsideWarning, match="b is 1, the schedule is for 2 to 64"):
        assert train(model, sizes) == wanted
    fixed = automatic(dims=None)
    with pytest.warns(SteppedAsideWarning, match="the model's own forward runs"):
        assert train(fixed, sizes) == wanted


@pytest.mark.slow
def test_a_file_is_written_used_and_planned_again_when_it_is_stale(tmp_path: Path) -> None:
    path, wanted = tmp_path / "plan.json", train(made())
    assert train(automatic(file=path, dims=None)) == wanted
    first = path.read_bytes()
    again = automatic(file=str(path), dims=None)
    assert train(again) == wanted
    state = state_of(again)
    assert state is not None
    assert not state.outcome.planned
    assert state.outcome.schedules == (load(path),)

    def changed() -> Any:
        model = made()
        model.body[1] = nn.SiLU()
        return model

    with pytest.raises(StaleModelError, match=r"plan.json is not for this training(.|\n)*SiLU(.|\n)*on_stale='replan'"):
        train(remate.auto(changed(), file=path, on_stale="refuse", dims=None, **QUICK))
    assert path.read_bytes() == first
    lines: list[str] = []
    replanned = remate.auto(changed(), file=path, dims=None, **dict(QUICK, progress=lines.append))
    assert train(replanned) == train(changed())
    assert any("plan.json is planned again: Net is not what the schedule was planned for" in line for line in lines)
    assert path.read_bytes() != first
    other = remate.auto(changed(), file=path, dims=None, **dict(QUICK, budget="100%"))
    assert train(other) == train(changed())
    assert load(path).solve.settings.budget == "100%"  # type: ignore[union-attr]


def test_what_is_no_schedule_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text("my notes")
    with pytest.raises(remate.RemateError, match="R00"):
        automatic(file=path)
    assert path.read_text() == "my notes"
    with pytest.raises(OSError, match="missing"):
        automatic(file=tmp_path / "missing" / "plan.json")
    with pytest.raises(remate.BudgetError):
        automatic(budget="a lot")
    with pytest.raises(remate.RemateError, match=r"no argument 'dim'(.|\n)*dims"):
        automatic(dim=None)


@pytest.mark.slow
def test_a_model_that_changes_while_it_trains_is_planned_again() -> None:
    def loop(model: Any) -> list[Any]:
        actual = train(model)
        model.scale = 2.0
        return [actual, train(model)]

    wanted = loop(made())
    assert loop(automatic(dims=None)) == wanted
    refusing = automatic(dims=None, on_stale="refuse")
    train(refusing)
    refusing.scale = 2.0
    with pytest.raises(StaleModelError, match="scale"):
        train(refusing)


@pytest.mark.slow
def test_what_changes_at_every_call_ends_up_with_its_own_forward() -> None:
    class Counting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * float(str(self.factor))

    def loop(model: Any) -> list[Any]:
        results = []
        for step in range(6):
            model.factor = str(step)
            results.append(train(model, (64,)))
        return results

    wanted = loop(seeded(Counting()).train())
    model = remate.auto(seeded(Counting()).train(), **QUICK, dims=None, on_refused="original")
    with pytest.warns(SteppedAsideWarning, match="changes again and again"):
        assert loop(model) == wanted
    state = state_of(model)
    assert state is not None
    assert state._plans == 3
    with pytest.raises(StaleModelError) as refused:
        loop(remate.auto(seeded(Counting()).train(), **QUICK, dims=None))
    assert "on_refused='original'" in refused.value.__notes__[-1]


def test_what_cannot_be_planned_raises_or_trains_by_its_own_forward() -> None:
    class Data(nn.Linear):  # without parts
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.sum().item() > 0 else -x)

    def data_dependent() -> Any:
        return seeded(Data(16, 4)).train()

    with pytest.raises(remate.CaptureError) as refused:
        train(remate.auto(data_dependent(), **QUICK))
    assert "on_refused='original'" in refused.value.__notes__[0]
    model = remate.auto(data_dependent(), **QUICK, on_refused="original")
    with pytest.warns(SteppedAsideWarning, match="trains with its own forward, without a memory budget"):
        assert train(model) == train(data_dependent())


@pytest.mark.slow
def test_a_budget_below_the_floor_is_planned_with_a_warning_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    model = automatic(budget="1%", file=path)
    with pytest.warns(UserWarning, match=r"(?s)OVER BUDGET.*proven floor.*held at .*for the smallest peak found"):
        assert train(model) == train(made())
    assert ran(model) == 2
    schedule = load(path)
    assert schedule.solve.settings is not None
    assert schedule.solve.settings.budget == "1%"
    assert schedule.peak_bytes > 0.01 * schedule.baseline_peak_bytes

    again = automatic(budget="1%", file=path)
    train(again)
    state = state_of(again)
    assert state is not None
    assert not state.outcome.planned
    with pytest.raises(InfeasibleError):
        train(automatic(budget="1%", on_infeasible="error"))
    with pytest.raises(UnknownNameError, match="one of error, smallest"):
        automatic(on_infeasible="never")


@pytest.mark.slow
def test_an_over_budget_file_is_planned_again_and_bound_again(tmp_path: Path) -> None:
    model, call = made(), (data(64, 16),)
    options: dict[str, Any] = {"budget": "1%", "cost": "cpu", "progress": None}
    with pytest.raises(InfeasibleError):
        remate.plan(model, call, **options)
    with pytest.warns(UserWarning, match="OVER BUDGET"):
        schedule: Any = remate.plan(model, call, **options, on_infeasible="smallest")
    step = prepare_again(schedule, model, call)
    with pytest.warns(UserWarning, match="OVER BUDGET"):
        assert replan(schedule, step)[0].peak_bytes == schedule.peak_bytes
    assert rebind(schedule, step).schedule.budget_bytes == schedule.budget_bytes


def test_a_copy_trains_by_itself() -> None:
    model = automatic(dims=None)
    early, wanted = copy.deepcopy(model), train(made())
    assert train(early) == wanted
    late = copy.deepcopy(early)
    assert ran(model) == 0
    assert train(model) == wanted
    assert train(late) == train(early)
    assert (ran(early), ran(late)) == (4, 2)
    assert next(late.parameters()) is not next(early.parameters())


def test_what_wraps_its_forward_wraps_the_schedule() -> None:
    """As accelerate does, by `__func__`: after `auto` and before it."""

    def cast(model: Any) -> Any:
        forward = model.forward.__func__

        def in_bf16(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return forward(*args, **kwargs).float()

        model.forward = in_bf16.__get__(model)
        return model

    wanted = train(cast(made()))
    model = cast(automatic(dims=None))
    assert train(model) == wanted
    assert ran(model) == 2
    del model.forward
    model = remate.auto(cast(made()), **QUICK, dims=None)
    assert train(model) == wanted
    assert ran(model) == 2
    del model.forward
    assert train(model)[0] != wanted[0]  # without autocast


def test_a_wrapper_that_hides_the_forward_is_refused() -> None:
    model = made()
    forward = model.forward
    model.forward = lambda x: forward(x)
    with pytest.raises(remate.CaptureError, match=r"forward of the model was replaced by(.|\n)*before accelerator"):
        remate.auto(model, **QUICK)


def test_it_is_called_once() -> None:
    model = automatic()
    with pytest.raises(remate.CaptureError, match=r"remate\.auto was already called for this model"):
        remate.auto(model, **QUICK)
    schedule = remate.plan(model, (data(64, 16),), budget="100%", cost="cpu")  # as of the model itself
    with pytest.raises(remate.CaptureError, match="the model already has a schedule"):
        remate.auto(apply(made(), schedule), **QUICK)
    with pytest.raises(remate.CaptureError, match="not a torch"):
        remate.auto(lambda x: x, **QUICK)  # type: ignore[type-var]


@pytest.mark.slow
def test_a_discriminator_is_planned_for_its_inputs_too() -> None:
    """Its own step has no use for their gradients, that of the generator does: one schedule serves both in the end."""

    def loop(model: Any) -> list[Any]:
        torch.manual_seed(3)
        results = []
        for _ in range(2):
            for given in (data(32, 16), data(32, 16).requires_grad_()):
                model(given).square().mean().backward()
                results.append(None if given.grad is None else given.grad.tolist())
        return [results, [p.grad.tolist() for p in model.parameters()]]

    model = automatic(dims=None)
    assert loop(model) == loop(made())
    state = state_of(model)
    assert state is not None
    assert state._plans == 2
    assert ran(model) == 3  # since the second plan


@pytest.mark.slow
def test_several_models_each_have_their_own() -> None:
    def blocks() -> Any:
        return nn.Sequential(*[seeded(Net()) for _ in range(3)]).train()

    def loop(model: Any) -> list[Any]:
        torch.manual_seed(3)
        model[0].requires_grad_(False)
        loss = model[2](model[1](model[0](data(32, 16)).repeat(1, 4)).repeat(1, 4)).sum()
        loss.backward()
        return [loss.item(), [p.grad.tolist() for p in model[1].parameters()]]

    wanted = loop(blocks())
    model = blocks()
    for child in model:
        remate.auto(child, **QUICK, dims=None)
    assert loop(model) == wanted
    assert [ran(child) for child in model] == [0, 1, 1]


@pytest.mark.parametrize("loop", EQUAL, ids=lambda loop: loop.__name__)
@pytest.mark.slow
def test_a_loop_ends_as_in_eager(loop: Callable[[Make], Any]) -> None:
    ends = []
    for make in (net, lambda: remate.auto(net(), dims=None, **dict(QUICK, budget="100%"))):
        torch.manual_seed(7)
        model = loop(make)
        ends.append([*model.state_dict().values(), *[p.grad for p in model.parameters()], torch.get_rng_state()])
    for actual, wanted in zip(ends[1], ends[0], strict=True):
        assert actual is wanted is None or torch.equal(actual, wanted)


def test_exports_and_transforms_have_the_model_itself() -> None:
    model, plain = automatic(dims=None), made()
    for module in (model, plain):
        train(module)
        module.eval()
    x = data(4, 16)
    traced: Any = torch.jit.trace(model, x)
    assert torch.equal(traced(x), plain(x))
    assert torch.equal(torch.export.export(model, (x,)).module()(x), plain(x))
    assert torch.equal(torch.func.vmap(model)(x), torch.func.vmap(plain)(x))


class Carries(Net):
    """Creates the state that it carries at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x) if self.last is None else self.body(x) + self.last
        self.last = h.detach()
        return self.head(h)


@pytest.mark.slow
def test_a_first_call_that_is_another_step_is_the_models_own() -> None:
    model = remate.auto(seeded(Carries()).train(), **QUICK, dims=None)
    assert train(model, (64, 64, 64)) == train(seeded(Carries()).train(), (64, 64, 64))
    assert ran(model) == 2
