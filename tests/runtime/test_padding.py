"""`apply(..., otherwise="pad")`: a smaller call is padded with what the file declares, and its outputs are cut back."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.errors import CaptureError
from remate_runtime import BindError, Schedule, ScheduleError, StaleModelError, apply

from .small import Normed, data, seeded
from .stepping import everything, schedule_of

FILL: dict[str, bool | int | float] = {"ids": 0, "mask": False, "labels": -100}


class Language(nn.Module):
    """Causal by a sum over what came before; the mask takes padding out."""

    def __init__(self, averaged: bool = False) -> None:
        super().__init__()
        self.embed, self.head, self.averaged = nn.Embedding(11, 8), nn.Linear(8, 11), averaged

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(torch.tanh((self.embed(ids) * mask[..., None]).cumsum(1)))
        flat = logits.flatten(0, 1)
        loss = flat.square().mean() if self.averaged else nn.functional.cross_entropy(flat, labels.flatten())
        return {"loss": loss, "logits": logits}


def call(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(rows))
    return {"ids": ids, "mask": torch.ones(rows, length, dtype=torch.bool), "labels": ids}


@functools.cache
def unfilled(rows: int, length: int, averaged: bool) -> Schedule:
    model = seeded(Language(averaged))
    return schedule_of(model, (), call(rows, length), everything, differentiate=["loss", "logits"])


def of(rows: int, length: int, averaged: bool = False, **fill: Any) -> Schedule:
    schedule = unfilled(rows, length, averaged)
    return replace(schedule, model=replace(schedule.model, fill=fill or FILL))


def outcome(model: nn.Module, given: dict[str, torch.Tensor], outside: bool = False) -> list[torch.Tensor]:
    model.zero_grad()
    outputs = model(**given)
    (outputs["logits"].square().mean() if outside else outputs["loss"]).backward()
    return [outputs["loss"], outputs["logits"], *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.quick("shape1-True")
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("shape", [(4, 8), (3, 8), (4, 5), (2, 3), (1, 1)])
def test_a_smaller_call_has_the_outputs_and_gradients_of_the_model(shape: tuple[int, int], outside: bool) -> None:
    model = seeded(Language())
    planned = apply(model, of(4, 8), otherwise="pad")
    for actual, wanted in zip(
        outcome(planned, call(*shape), outside), outcome(model, call(*shape), outside), strict=True
    ):
        assert actual.shape == wanted.shape
        torch.testing.assert_close(actual, wanted)


@pytest.mark.slow
def test_the_smallest_schedule_that_holds_the_call_runs() -> None:
    planned: Any = apply(seeded(Language()), [of(4, 8), of(4, 4), of(2, 8)], otherwise="pad")
    ran = []
    for step in planned._remate_step.steps:
        run = step.run
        step.run = lambda *call, step=step, run=run, **options: (ran.append(step.schedule), run(*call, **options))[1]
    for shape in ((3, 3), (2, 7), (3, 7), (1, 4)):
        planned(**call(*shape))
    sizes = [item.model.inputs["kwargs"]["ids"]["tensor"] for item in ran]
    assert sizes == ["i64[4,4]", "i64[2,8]", "i64[4,8]", "i64[4,4]"]


@pytest.mark.slow
def test_sizes_of_a_range_are_padded_to_the_next_step() -> None:
    dims = {name: {0: "b=2..4", 1: "t=4..16/4"} for name in FILL}
    schedule = remate.plan(seeded(Language()), (), call(4, 16), budget="100%", cost="cpu", dims=dims, fill=FILL)
    assert schedule.model.fill == FILL
    model = seeded(Language())
    planned: Any = apply(model, schedule, otherwise="pad")
    for shape in ((4, 16), (3, 5), (1, 1)):
        actual, wanted = outcome(planned, call(*shape)), outcome(model, call(*shape))
        for left, right in zip(actual, wanted, strict=True):
            assert left.shape == right.shape
            torch.testing.assert_close(left, right)
    padded = planned._remate_step.steps[0].padded((), call(3, 5))
    assert padded.kwargs["ids"].shape == (3, 8)
    assert padded.kwargs["labels"][0, 5:].tolist() == [-100] * 3
    with pytest.raises(BindError, match="for 2 to 4"):
        planned(**call(5, 8))


@pytest.mark.parametrize(
    ("fill", "given", "told"),
    [
        ({"ids": 0, "mask": False}, call(3, 8), "'labels' would be padded from \\[3, 8\\] to \\[4, 8\\]"),
        ({}, call(5, 8), "at most, got i64\\[5,8\\]"),
        ({}, {**call(3, 8), "mask": torch.ones(3, 8)}, "must be bool"),
        ({}, {**call(3, 8), "labels": torch.zeros(24, dtype=torch.int64)}, "padding: the input 'labels' must be"),
    ],
)
def test_what_padding_does_not_help_is_refused(fill: Any, given: dict[str, torch.Tensor], told: str) -> None:
    planned = apply(seeded(Language()), of(4, 8, **fill), otherwise="pad")
    with pytest.raises(BindError, match=told):
        planned(**given)


def test_without_values_to_pad_with_it_is_refused() -> None:
    bare = of(4, 8)
    planned = apply(seeded(Language()), replace(bare, model=replace(bare.model, fill={})), otherwise="pad")
    with pytest.raises(BindError, match="declares no values to pad with"):
        planned(**call(3, 8))


def test_padding_does_not_go_into_buffers() -> None:
    schedule = schedule_of(seeded(Normed()), (data(4, 3, 6, 6),))
    schedule = replace(schedule, model=replace(schedule.model, fill={"x": 0}))
    planned = apply(seeded(Normed()), schedule, otherwise="pad")
    with pytest.raises(BindError, match="updates buffers"):
        planned(data(3, 3, 6, 6))


def test_attributes_that_forward_sets_are_not_padded() -> None:
    class Kept(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = super().forward(x)
            return self.kept.square()

    schedule = schedule_of(seeded(Kept(3, 2)), (data(4, 3),))
    schedule = replace(schedule, model=replace(schedule.model, fill={"x": 0}))
    planned = apply(seeded(Kept(3, 2)), schedule, otherwise="pad")
    with pytest.raises(BindError, match="sets attributes"):
        planned(data(3, 3))


class Made(nn.Linear):
    """What is made of the outputs of a linear layer."""

    def __init__(self, of: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(3, 2)
        self.of = of

    def forward(self, x: torch.Tensor) -> Any:
        return self.of(super().forward(x))


@pytest.mark.quick("shape0")
@pytest.mark.parametrize(
    ("of", "shape"),
    [
        (lambda output: (output, output.shape[0]), (3, 6, 3)),
        (lambda output: output.flatten(0, 1), (4, 5, 3)),
        (lambda output: output.flatten(0, 1), (3, 6, 3)),
        (lambda output: torch.cat([output, output]), (3, 6, 3)),
    ],
)
def test_outputs_that_cannot_be_cut_are_refused(of: Callable[[torch.Tensor], Any], shape: tuple[int, ...]) -> None:
    model = seeded(Made(of))
    schedule = schedule_of(model, (data(4, 6, 3),))
    schedule = replace(schedule, model=replace(schedule.model, fill={"x": 0}))
    planned = apply(model, schedule, otherwise="pad")
    with pytest.raises(BindError, match="cannot be cut"):
        planned(data(*shape))


def test_an_output_that_is_shorter_by_one_is_cut() -> None:
    model = seeded(Made(lambda output: output[:, 1:]))
    schedule = schedule_of(model, (data(4, 6, 3),))
    planned = apply(model, replace(schedule, model=replace(schedule.model, fill={"x": 0})), otherwise="pad")
    torch.testing.assert_close(planned(data(3, 4, 3)), model(data(3, 4, 3)))


def test_verify_sees_that_padding_changes_a_mean() -> None:
    given = (), call(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(seeded(Language()), of(4, 8), otherwise="pad", verify=given)
    with pytest.raises(StaleModelError, match="does not compute what the model computes now"):
        apply(seeded(Language(True)), of(4, 8, True), otherwise="pad", verify=given)


@pytest.mark.quick("fill0")
@pytest.mark.parametrize(
    ("fill", "told"),
    [
        ({"nothing": 0}, "no input"),
        ({"ids": 0.5}, "cannot hold 0.5"),
        ({"mask": 0}, "cannot hold 0"),
        ({"ids": 1 << 63}, "hold"),
    ],
)
def test_values_that_an_input_cannot_hold_are_refused(fill: dict[str, Any], told: str) -> None:
    with pytest.raises(ScheduleError, match=f"R066.*{told}"):
        apply(seeded(Language()), of(4, 8, **fill))
    with pytest.raises(CaptureError, match=told):
        remate.plan(seeded(Language()), (), call(4, 8), budget="100%", cost="cpu", fill=fill)
