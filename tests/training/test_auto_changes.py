"""`remate.auto` where the model changes while it trains: numbers, state that forward keeps, layers that are frozen."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import remate
from remate.errors import CaptureError
from remate.training import state_of
from remate_runtime import SteppedAsideWarning

from ..runtime.small import data, seeded
from .test_auto import QUICK, Net, made, ran, train

ANY: dict[str, Any] = {**QUICK, "budget": "100%"}  # also where nothing can be recomputed


class Annealed(Net):
    temperature: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / self.temperature


def annealed(model: Any, steps: int) -> list[Any]:
    """Train with a temperature that falls at every step."""
    results = []
    for step in range(steps):
        model.temperature = 1.0 - 0.1 * step
        results.append(train(model, (64,)))
    return results


@pytest.mark.slow
def test_a_number_that_the_loop_changes_is_read_at_every_call_from_the_first_change_on() -> None:
    model = remate.auto(seeded(Annealed()).train(), **QUICK, dims=None)
    assert annealed(model, 6) == annealed(seeded(Annealed()).train(), 6)
    state = state_of(model)
    assert state is not None
    assert state._plans == 2
    assert list(state.outcome.schedules[0].model.live) == ["temperature"]


@pytest.mark.slow
def test_state_that_begins_as_nothing_and_as_one_tensor() -> None:
    class Carrying(nn.Module):
        h: Any
        c: Any

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTMCell(8, 16), nn.Linear(16, 1)
            self.h = self.c = torch.zeros(4, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h, self.c = self.cell(x, None if self.h is None else (self.h, self.c))
            y = self.out(self.h)
            self.h, self.c = self.h.detach(), self.c.detach()
            return y.square().mean()

    def loop(model: Any) -> list[Any]:
        results = []
        for step in range(6):
            if step == 3:
                model.h = model.c = None
            results.append(model(data(4, 8)))
            results[-1].backward()
        return [*results, *(p.grad for p in model.parameters())]

    wanted = loop(seeded(Carrying()).train())
    model = remate.auto(seeded(Carrying()).train(), **ANY)
    with pytest.warns(SteppedAsideWarning, match="buffer 'h': planned .*, the model has None"):
        assert all(map(torch.equal, loop(model), wanted))
    state = state_of(model)
    assert state is not None
    assert (state._plans, state.calls_aside) == (1, 1)


def test_layers_that_are_trained_later_are_planned_again() -> None:
    def loop(model: Any) -> list[Any]:
        results = []
        for step in range(6):
            model[0].train(step >= 3).requires_grad_(step >= 3)
            results.append(train(model, (64,)))
        return results

    def fresh() -> nn.Sequential:
        return seeded(nn.Sequential(Net(), nn.Linear(4, 4))).train()

    model = remate.auto(fresh(), **ANY, dims=None)
    with pytest.warns(SteppedAsideWarning, match="in eval\\(\\) mode when planned"):
        assert loop(model) == loop(fresh())
    state = state_of(model)
    assert state is not None
    assert (state._plans, state.calls_aside) == (2, 0)


def test_a_model_without_forward_names_a_module_to_pass() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Linear(2, 2)

    with pytest.raises(CaptureError, match=r"Agent has no forward.*\n.*model.actor = remate.auto\(model.actor\)"):
        remate.auto(Agent())


@pytest.mark.slow
def test_a_number_that_changes_after_planning_does_not_bring_the_file_back(tmp_path: Path) -> None:
    wanted = annealed(seeded(Annealed()).train(), 3)
    for _ in range(2):  # the second run reads what the first one wrote
        model = remate.auto(seeded(Annealed()).train(), **QUICK, dims=None, file=tmp_path / "plan.json")
        assert annealed(model, 3) == wanted
    state = state_of(model)
    assert state is not None
    assert state._plans == 0


def test_where_no_schedule_needs_less_memory_the_model_trains_as_it_is_until_more_is_trained() -> None:
    def loop(model: Any) -> list[Any]:
        results = []
        for step in range(5):
            model[0].requires_grad_(step >= 2)
            results.append(train(model, (64,)))
        return results

    def fresh() -> nn.Sequential:
        return seeded(nn.Sequential(Net(), nn.Linear(4, 4))).train()

    said: list[str] = []
    options: dict[str, Any] = {**QUICK, "progress": said.append}
    model = remate.auto(fresh(), **options, dims=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert loop(model) == loop(fresh())
    assert not [warning for warning in caught if "OVER BUDGET" in str(warning.message)]
    assert any("trains with its own forward: no schedule needs less memory" in text for text in said)
    state = state_of(model)
    assert state is not None
    assert not state.outcome.needless
    assert state._plans == 2
    assert state.runs_schedules


class Distilled(nn.Module):
    """Its teacher is in a list, so that the model does not register it, and follows the student."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Net(), [seeded(Net()).requires_grad_(False).eval()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.student(x) - self.teacher[0](x)

    def follow(self) -> None:
        with torch.no_grad():
            for average, parameter in zip(self.teacher[0].parameters(), self.student.parameters(), strict=True):
                average.lerp_(parameter + 0.1, 0.5)


def distilled(model: Any) -> list[Any]:
    results = []
    for _ in range(4):
        results.append(train(model, (64,)))
        model.follow()
    return results


@pytest.mark.slow
def test_a_teacher_that_the_model_does_not_register_follows_and_the_student_is_planned() -> None:
    said: list[str] = []
    model = remate.auto(seeded(Distilled()).train(), **{**ANY, "progress": said.append})
    assert distilled(model) == distilled(seeded(Distilled()).train())
    assert any("tensors that the model does not register, and that change: planned: student" in line for line in said)


class Pictures(nn.Sequential):
    """Its dropout draws other numbers for images in a different memory layout."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(512, 64), nn.GELU(), nn.Linear(64, 4)),
        )


def trained(model: Any, layouts: list[torch.memory_format]) -> list[float]:
    torch.manual_seed(3)
    losses = []
    for layout in layouts:
        loss = model(data(4, 3, 12, 12).to(memory_format=layout)).square().mean()
        loss.backward()
        losses.append(loss.item())
    return [*losses, *(p.grad.sum().item() for p in model.parameters())]


@pytest.mark.slow
def test_inputs_in_another_memory_layout_are_planned_at_their_second_call_in_a_row() -> None:
    usual, last = torch.contiguous_format, torch.channels_last
    for layouts, aside in (([usual, last, usual, last, usual], 2), ([usual, last, last, last], 1)):
        model = remate.auto(seeded(Pictures()), **ANY, dims=None)
        with pytest.warns(SteppedAsideWarning, match="a different memory layout than planned"):
            losses = trained(model, layouts)
        assert losses == trained(seeded(Pictures()), layouts)
        state = state_of(model)
        assert state is not None
        assert state.calls_aside == (0 if aside == 1 else aside)  # new schedules count from zero
        assert state.runs_schedules


def test_hooks_of_all_modules_run_the_models_own_forward_while_they_are_there() -> None:
    called: list[str] = []
    model, wanted, steps = remate.auto(made(), **QUICK), made(), list[int]()
    for registered in (True, False, True, False):
        handle = register_module_forward_hook(lambda module, *_: called.append(type(module).__name__))
        if not registered:
            handle.remove()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert train(model, (64,)) == train(wanted, (64,))
        steps.append(sum("registered for all modules" in str(w.message) for w in caught))
        handle.remove()
    assert steps == [1, 0, 0, 0]
    assert called.count("Net") == 4  # two calls of each
    assert ran(model) == 2


@pytest.mark.slow
def test_a_gradient_penalty_leaves_the_model_to_its_own_forward() -> None:
    def trained(model: Any) -> list[Any]:
        torch.manual_seed(0)
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(3):
            x = data(64, 16, seed=step).requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            loss = (slope.norm(2, 1) - 1).square().mean() - model(data(64, 16, seed=step + 9)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [losses, [parameter.tolist() for parameter in model.parameters()]]

    model = remate.auto(made(), **QUICK)
    with pytest.warns(SteppedAsideWarning, match="own forward") as caught:
        assert trained(model) == trained(made())
    assert [text for w in caught if "trains with its own forward" in (text := str(w.message))]
    state = state_of(model)
    assert state is not None
    assert "create_graph=True" in state.outcome.refused


def test_unchecked_operators_that_the_model_itself_calls_need_no_permission_but_those_of_a_file_do(
    tmp_path: Path,
) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.head = (
                nn.EmbeddingBag(20, 16),
                nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.bags(x.abs().mul(9).long() % 20))

    operators = ("aten._embedding_bag", "aten._embedding_bag_backward")
    wanted, file = train(seeded(Bags())), tmp_path / "bags.json"
    for permitted, plans in (((), 1), ((), 1), (operators, 0)):
        options: dict[str, Any] = {**QUICK, "namespaces": permitted}
        model = remate.auto(seeded(Bags()), file=file, **options)
        assert train(model) == wanted
        assert ran(model) == 2
        state = state_of(model)
        assert state is not None
        assert state._plans == plans
