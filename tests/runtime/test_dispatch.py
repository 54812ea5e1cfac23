"""Several schedules on one model: each call runs the one that is for it; where none is, it is refused, or eager's
own."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate_runtime import BindError, Schedule, SteppedAsideWarning, apply

from .small import data, seeded
from .stepping import just_in_time, schedule_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 1), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.b(self.drop(torch.tanh(self.a(x)))).square().mean() * scale


def of(batch: int, **kwargs: Any) -> Schedule:
    return schedule_of(seeded(Net()), (data(batch, 8),), kwargs, recomputes=just_in_time)


def assert_eager(planned: nn.Module, eager: nn.Module, *args: Any, **kwargs: Any) -> None:
    results = []
    for module in (planned, eager):
        module.zero_grad()
        torch.manual_seed(3)
        loss = module(*args, **kwargs)
        loss.backward()
        results.append([loss, *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    for ours, eagers in zip(*results, strict=True):
        assert torch.equal(ours, eagers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for batch in (4, 7):
        of(batch).save(str(tmp_path / f"b{batch}.json"))
    of(4, scale=2.0).save(str(tmp_path / "scaled.json"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("as_folder", [True, False])
def test_the_schedule_that_fits_runs(folder: Path, as_folder: bool) -> None:
    model = seeded(Net())
    planned = apply(model, folder if as_folder else [folder / "b4.json", of(7), str(folder / "scaled.json")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args, kwargs in (((data(4, 8),), {}), ((data(7, 8),), {}), ((data(4, 8),), {"scale": 2.0})):
            assert_eager(planned, model, *args, **kwargs)


def test_none_that_fits_says_why_of_each(folder: Path) -> None:
    planned = apply(seeded(Net()), folder)
    with pytest.raises(BindError) as caught:
        planned(data(5, 8))
    assert "no schedule is for this call" in str(caught.value)
    assert str(caught.value).count("got f32[5,8]") == 3
    assert "otherwise='original'" in str(caught.value)


@pytest.mark.quick("40")
@pytest.mark.parametrize(("batch", "told"), [(2, "within the budget"), (40, "over the budget")])
def test_otherwise_the_models_own_forward(batch: int, told: str) -> None:
    """As the last batch of an epoch. The file's budget is the peak of a step that keeps everything."""
    model = seeded(Net())
    schedule = remate.plan(model, (data(8, 8),), budget="100%", cost="cpu")
    planned = apply(model, schedule, otherwise="original")
    with pytest.warns(SteppedAsideWarning, match=f"got f32.{batch},8.*own forward runs, without recomputation.*{told}"):
        assert_eager(planned, model, data(batch, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning appears once
        assert_eager(planned, model, data(batch, 8))
        assert_eager(planned, model, data(8, 8))


def test_original_is_not_for_a_model_that_changed() -> None:
    model = seeded(Net())
    planned = apply(model, of(4), otherwise="original")
    model.drop.p = 0.5
    with pytest.raises(BindError, match=r"attribute p was 0.2, is 0.5"):
        planned(data(4, 8))


def test_original_is_for_a_model_that_changed_where_nothing_is_trained() -> None:
    """As adapters that are switched off for a reference."""
    model = seeded(Net())
    schedule = of(4)
    planned, strict = apply(model, schedule, otherwise="original"), apply(model, schedule)
    model.drop.p = 0.5
    with torch.no_grad():
        torch.manual_seed(0)
        with pytest.warns(
            SteppedAsideWarning, match=r"the model changed after.*: module 'drop' .*p was 0.2, is 0.5; the"
        ):
            result = planned(data(4, 8))
        torch.manual_seed(0)
        assert torch.equal(result, model(data(4, 8)))
        with pytest.raises(BindError, match=r"attribute p was 0.2, is 0.5"):
            strict(data(4, 8))
    model.drop.p = 0.2
    assert_eager(planned, model, data(4, 8))


@pytest.mark.slow
def test_modes(folder: Path) -> None:
    """A schedule for training and one for evaluation."""
    model = seeded(Net())
    training = of(4)
    evaluation = schedule_of(seeded(Net()).eval(), (data(4, 8),), recomputes=just_in_time)
    planned = apply(model, [training, evaluation])
    for mode in (True, False, True):
        model.train(mode)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_eager(planned, model, data(4, 8))


@pytest.mark.slow
def test_copies_baseline_of_them(folder: Path) -> None:
    model = seeded(Net())
    planned = apply(model, folder, otherwise="original")
    for copied in (copy.deepcopy(planned), pickle.loads(pickle.dumps(planned))):
        for batch in (4, 7):
            assert_eager(copied, model, data(batch, 8))
        with pytest.warns(SteppedAsideWarning):
            copied(data(5, 8))


def test_no_schedule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BindError, match="the folder contains no schedule file"):
        apply(seeded(Net()), tmp_path)
    with pytest.raises(BindError, match="no schedule was given"):
        apply(seeded(Net()), [])


@pytest.mark.slow
def test_verify_runs_each_or_the_one_that_takes_the_call(folder: Path) -> None:
    model = seeded(Net())
    apply(model, folder, verify=True)
    apply(model, folder, verify=((data(7, 8),), {}))
