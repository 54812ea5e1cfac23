"""`apply` with files for parts of a model: another view of it, in which these run by schedules."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.profiler import ProfilerActivity, profile

import remate
from remate_runtime import BindError, Schedule, StaleModelError, SteppedAsideWarning, apply, load, predicted_peak
from remate_runtime.applied import original_of
from remate_runtime.flat_step.expansion import expand

from . import stepping
from .small import data, seeded

pytestmark = pytest.mark.allocating  # parts that are called several times have no arena


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, int]:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x))))) * scale, self.number * 0


class Stack(nn.Module):
    """The code around the blocks reads values of tensors, so that it cannot be planned."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.blocks = nn.ModuleList([Block(at) for at in range(depth)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x, _ = block(x, scale=0.5)
        logits = self.head(x)
        chosen = logits[logits.detach().amax(-1) > 0]
        return chosen.square().mean() if len(chosen) else logits.square().mean()


IDS = torch.arange(44).reshape(4, 11) % 11


def stack() -> Any:
    return seeded(Stack()).train()


@pytest.fixture(scope="module")
def planned() -> Schedule:
    schedule = remate.plan(stack(), (IDS,), at="blocks.*", budget="70%", cost="cpu", effort="quick")
    assert isinstance(schedule, Schedule)
    return schedule


def gradients(model: nn.Module, ids: torch.Tensor = IDS) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    model(ids).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.slow
def test_a_step_is_eagers_to_the_bit_and_every_part_runs(planned: Schedule) -> None:
    model = stack()
    view = apply(model, planned)
    expected = gradients(model)
    actual = gradients(view)
    assert len(actual) == len(expected)
    assert all(map(torch.equal, actual, expected))
    assert [step.calls for step in view._remate_parts.steps.values()] == [1, 1, 1]
    if not stepping.ROUNDING:  # compiled parts hold less
        assert predicted_peak(view) == planned.peak_bytes


def test_the_view_shares_the_model_and_leaves_it_as_it_was(planned: Schedule) -> None:
    model = stack()
    before = list(model.blocks)
    view = apply(model, planned)
    assert list(model.blocks) == before
    assert model.blocks[0] is before[0]
    assert list(view.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(view.parameters(), model.parameters(), strict=True))
    assert type(view).__name__ == "Stack"
    assert isinstance(view, Stack)
    assert isinstance(view.blocks[0], Block)
    assert view.head is model.head
    assert view.blocks[0] is not model.blocks[0]
    assert original_of(view) is model
    view.eval()
    assert not model.training
    assert not model.blocks[1].training


def test_copies_and_pickles_have_the_schedules_too(planned: Schedule) -> None:
    view = apply(stack(), planned)
    file = io.BytesIO(pickle.dumps(view))
    expected = gradients(view)
    for other in (copy.deepcopy(view), pickle.load(file)):
        assert original_of(other) is not original_of(view)
        assert all(map(torch.equal, gradients(other), expected))
        assert [step.calls for step in other._remate_parts.steps.values()] == [1, 1, 1]


def test_a_module_above_the_parts_is_copied_by_itself(planned: Schedule) -> None:
    view = apply(stack(), planned)
    x = data(4, 11, 8).requires_grad_()

    def through(blocks: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        y = x
        for block in blocks:
            y, _ = block(y, scale=0.5)
        return list(torch.autograd.grad(y.square().sum(), [*blocks.parameters()]))

    expected = through(view.blocks)
    for other in (pickle.loads(pickle.dumps(view.blocks)), copy.deepcopy(view.blocks)):
        assert isinstance(other, nn.ModuleList)
        steps = [getattr(block, "_remate_step") for block in other]  # noqa: B009
        assert all(map(torch.equal, through(other), expected))
        assert [step.calls for step in steps] == [1, 1, 1]
        assert not {id(p) for p in other.parameters()} & {id(p) for p in view.parameters()}


def test_a_child_that_was_replaced_since_is_the_models(planned: Schedule) -> None:
    model = stack()
    view = apply(model, planned)
    model.head = nn.Linear(8, 11)
    assert view.head is model.head
    model.blocks[0] = replaced = Block(0)
    assert view.blocks[0] is replaced
    assert view.blocks[1] is not model.blocks[1]


def test_one_module_takes_the_file_by_itself(planned: Schedule) -> None:
    model, eager = stack(), stack()
    for at in range(3):
        model.blocks[at] = apply(model.blocks[at], planned)
    assert all(map(torch.equal, gradients(model), gradients(eager)))


def test_attributes_are_compared_part_by_part(planned: Schedule) -> None:
    model = stack()
    model.blocks[1].number = 2
    with pytest.raises(BindError, match="attribute number was 1 when planned, is 2"):
        apply(model, planned)


def test_what_cannot_have_a_schedule_is_told(planned: Schedule) -> None:
    with pytest.raises(BindError, match=r"module 'blocks\.2': not in the model"):
        apply(seeded(Stack(2)).train(), planned)
    whole = replace(planned, model=replace(planned.model, at=()))
    with pytest.raises(BindError, match="for a model as a whole, and others are for parts"):
        apply(stack(), [planned, whole])
    nested = replace(planned, model=replace(planned.model, at=("blocks.0", "blocks.0.up")))
    with pytest.raises(BindError, match=r"module 'blocks\.0\.up': inside 'blocks\.0'"):
        apply(stack(), nested)
    wrapped = stack()
    wrapped.forward = wrapped.forward
    with pytest.raises(BindError, match=r"module '': a library that wraps models has replaced its forward"):
        apply(wrapped, planned)


def test_a_forward_that_goes_round_the_parts_is_told(planned: Schedule) -> None:
    model = stack()
    vars(model)["hidden"] = [*model.blocks]  # a plain list, which no view can show otherwise
    kind = type("Round", (Stack,), {"forward": lambda self, ids: self.head(self.hidden[0](self.embed(ids))[0]).mean()})
    model.__class__ = kind
    view = apply(model, planned)
    with pytest.warns(SteppedAsideWarning, match="forward called no part with a schedule"):
        view(IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view(IDS)


def test_verify_runs_the_parts_or_the_whole(planned: Schedule) -> None:
    apply(stack(), planned, verify=True)
    apply(stack(), planned, verify=((IDS,), {}))


def test_other_shapes_are_refused_or_run_the_original(planned: Schedule) -> None:
    told = r"the input 'x' must be[^$]*remate\.record\(model\)[^$]*plan\(call, at='blocks\.\[0-2\]', budget=\"70%\"\)"
    with pytest.raises(BindError, match=told):
        apply(stack(), planned)(IDS[:2])
    by_itself = apply(stack().blocks[1], planned)
    with pytest.raises(BindError, match=told):
        by_itself(data(2, 11, 8).requires_grad_(), scale=0.5)
    with pytest.warns(SteppedAsideWarning, match="the model's own forward runs"):
        apply(stack(), planned, otherwise="original")(IDS[:2])


def test_a_file_for_parts_reads_back(planned: Schedule, tmp_path: Any) -> None:
    path = str(tmp_path / "block.json")
    planned.save(path)
    assert load(path) == planned
    assert planned.model.at == ("blocks.[0-2]",)
    assert all(map(torch.equal, gradients(apply(stack(), path)), gradients(stack())))


def test_a_class_above_the_parts_that_was_exchanged_since_is_told(planned: Schedule) -> None:
    """The view would show the forward of the class that the module had."""

    class Halved(Stack):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) / 2

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = stack()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.stack(ids)
            return loss

    model, inner = stack(), Outer().train()
    further_down = replace(planned.model, at=tuple(f"stack.{path}" for path in planned.model.at))
    view, outer = apply(model, planned), apply(inner, replace(planned, model=further_down, digest=None))
    assert all(map(torch.equal, gradients(view), gradients(outer)))
    model.__class__ = inner.stack.__class__ = Halved
    with pytest.raises(StaleModelError, match=r"the model \(Stack\): is a .*Halved now\n.*apply the schedules again"):
        view(IDS)
    with pytest.raises(StaleModelError, match=r"module 'stack' \(Stack\): is a .*Halved now"):
        outer(IDS)
    assert all(map(torch.equal, gradients(apply(model, planned)), gradients(model)))


def test_a_module_at_two_places_runs_by_its_schedule_at_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)).mean()

    model = seeded(Twice()).train()
    x = data(4, 8).requires_grad_()
    schedule = remate.plan(model, (x,), at="a", budget="100%", cost="cpu")
    assert isinstance(schedule, Schedule)
    assert (schedule.model.at, schedule.model.calls) == (("a",), 2)
    view = apply(model, schedule)
    expected = torch.autograd.grad(model(x), list(model.parameters()))
    assert all(map(torch.equal, torch.autograd.grad(view(x), list(model.parameters())), expected))
    assert view._remate_parts.calls == 2


def test_a_class_that_wraps_the_forward_of_those_derived_from_it() -> None:
    """As the layers of transformers do: what is made of the wrapped forward is not what a schedule put there."""

    class Wrapping(nn.Module):
        def __init_subclass__(cls) -> None:
            inner = cls.forward
            cls.forward = lambda self, *args: inner(self, *args)

    class Layer(Wrapping):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(x))

    model = seeded(nn.Sequential(Layer(), nn.Linear(8, 1))).train()
    schedule = remate.plan(model, (data(4, 8),), at="0", budget="100%", cost="cpu")
    assert isinstance(schedule, Schedule)
    view = apply(model, schedule)
    view(data(4, 8)).sum().backward()
    assert view._remate_parts.calls == 1


@pytest.mark.eager
def test_ranges_of_the_profiler_begin_with_the_path_of_the_part(planned: Schedule) -> None:
    view = apply(stack(), planned, record_functions=True)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        view(IDS).backward()
    names = {event.name for event in seen.events() or ()}
    ids = [op.id for op in expand(planned).graph.operations]
    for path in ("blocks.0", "blocks.1", "blocks.2"):
        assert names >= {f"{path}.{op}" for op in ids}
