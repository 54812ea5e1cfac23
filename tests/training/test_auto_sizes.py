"""`remate.auto` where the lengths of batches differ."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.training import state_of
from remate_runtime import SteppedAsideWarning

from ..runtime.small import seeded
from .test_auto import QUICK


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(32, 16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        return (x + self.down(torch.relu(self.up(x)).square().exp().tanh())).square().mean()


class Halves(Words):
    """Another step for long inputs."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result = super().forward(words)
        return result * 2 if words.shape[1] % 4 == 1 else result


def trained(model: Any, lengths: Iterable[int]) -> list[torch.Tensor]:
    """Return the losses of a loop and the gradients of its last step."""
    results = []
    for step, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(step)
        model.zero_grad()
        loss = model(torch.randint(32, (4, length), generator=generator))
        loss.backward()
        results.append(loss.detach())
    return [*results, *(p.grad for p in model.parameters())]


@pytest.mark.slow
def test_lengths_that_differ_are_left_open() -> None:
    lengths = (16, 20, 21, 19, 30, 17)
    wanted = trained(seeded(Words()).train(), lengths)
    model = remate.auto(seeded(Words()).train(), **QUICK)
    with pytest.warns(SteppedAsideWarning, match=r"must be i64\[b,16\]"):
        results = trained(model, lengths)
    assert all(map(torch.equal, results, wanted))
    state = state_of(model)
    assert state is not None
    (schedule,) = state.outcome.schedules
    assert {name: (dim.min, dim.max) for name, dim in schedule.model.dims.items()} == {"b": (2, 4), "t": (2, 42)}
    assert (state._plans, state.calls_aside) == (2, 0)


class Positions(Words):
    """Has a table of positions, beyond which no length goes."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(26, 16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = self.positions(torch.arange(words.shape[1]))
        return super().forward(words) + (self.down(torch.relu(self.up(places)))).mean()


@pytest.mark.slow
def test_lengths_stay_within_what_the_model_takes() -> None:
    lengths = (16, 20, 21, 26, 9)
    model = remate.auto(seeded(Positions()).train(), **QUICK)
    with pytest.warns(SteppedAsideWarning):
        results = trained(model, lengths)
    assert all(map(torch.equal, results, trained(seeded(Positions()).train(), lengths)))
    state = state_of(model)
    assert state is not None
    dim = state.outcome.schedules[0].model.dims["t"]
    assert (dim.min, dim.max, state.calls_aside) == (2, 26, 0)


@pytest.mark.slow
def test_an_evaluation_in_between_does_not_matter() -> None:
    model = remate.auto(seeded(Words()).train(), **QUICK)
    trained(model, (16,))
    with pytest.warns(SteppedAsideWarning, match="other calls of this kind are not reported"):
        trained(model, (20,))
    with torch.no_grad():
        model.eval()(torch.zeros(4, 9, dtype=torch.long))
    trained(model.train(), (24,))
    state = state_of(model)
    assert state is not None
    assert "t" in state.outcome.schedules[0].model.dims


def test_one_other_length_is_no_reason_to_plan() -> None:
    lengths = (16, 20, 16, 16)
    model = remate.auto(seeded(Words()).train(), **QUICK)
    with pytest.warns(SteppedAsideWarning):
        results = trained(model, lengths)
    assert all(map(torch.equal, results, trained(seeded(Words()).train(), lengths)))
    state = state_of(model)
    assert state is not None
    assert (state._plans, state.calls_aside) == (1, 1)


@pytest.mark.slow
def test_where_lengths_cannot_be_left_open_the_schedule_stays() -> None:
    lengths = (16, 20, 24, 16, 16, 21)
    said: list[str] = []
    options: dict[str, Any] = {**QUICK, "progress": said.append}
    model = remate.auto(seeded(Halves()).train(), **options)
    with pytest.warns(SteppedAsideWarning):
        results = trained(model, lengths)
    assert all(map(torch.equal, results, trained(seeded(Halves()).train(), lengths)))
    assert any("other sizes cannot be planned with" in text for text in said)
    state = state_of(model)
    assert state is not None
    assert (state.outcome.schedules[0].model.dims.keys(), state.calls_aside) == ({"b"}, 3)


def test_a_defect_of_planning_other_sizes_does_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr("remate.training.state.planned_for_sizes", fails)
    lengths, said = (16, 20, 24, 16), list[str]()
    options: dict[str, Any] = {**QUICK, "progress": said.append, "on_refused": "original"}
    model = remate.auto(seeded(Words()).train(), **options)
    with pytest.warns(SteppedAsideWarning):
        results = trained(model, lengths)
    assert all(map(torch.equal, results, trained(seeded(Words()).train(), lengths)))
    assert any("failed, which is a defect of remate: IndexError: out of range" in text for text in said)


class Detector(nn.Module):
    """The number of boxes differs from image to image."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))]
        self.backbone, self.head = nn.Sequential(*layers), nn.Linear(16, 4)

    def forward(self, images: torch.Tensor, boxes: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        points = self.head(self.backbone(images))
        losses = [nn.functional.smooth_l1_loss(y[: len(b)], b) for y, b in zip(points, boxes, strict=True)]
        return {"loss": torch.stack(losses).mean()}


@pytest.mark.slow
def test_parts_are_planned_where_no_schedule_covers_all_calls(tmp_path: Path) -> None:
    def loop(model: Any) -> list[torch.Tensor]:
        generator, results = torch.Generator().manual_seed(0), []
        torch.manual_seed(0)
        for _ in range(6):
            counts = torch.randint(1, 9, (4,), generator=generator).tolist()
            loss = model(torch.randn(4, 64, 16), [torch.randn(n, 4) for n in counts])["loss"]
            model.zero_grad()
            loss.backward()
            results.append(loss.detach())
        return [*results, *(p.grad for p in model.parameters())]

    said: list[str] = []
    options = {**QUICK, "progress": said.append, "file": tmp_path / "plan.json", "budget": "50%"}  # none is so small
    model = remate.auto(seeded(Detector()).train(), **options)
    with pytest.warns(SteppedAsideWarning, match="boxes"):
        results = loop(model)
    assert all(map(torch.equal, results, loop(seeded(Detector()).train())))
    state = state_of(model)
    assert state is not None
    assert [schedule.model.at for schedule in state.outcome.schedules] == [("backbone",)]
    assert any("inputs differ from call to call" in text and "planned: backbone" in text for text in said)
    assert state.calls_aside == 0

    second = remate.auto(seeded(Detector()).train(), **options)
    assert all(map(torch.equal, results, loop(second)))
    read = state_of(second)
    assert read is not None
    assert read.runs_schedules
    assert not read.outcome.planned
