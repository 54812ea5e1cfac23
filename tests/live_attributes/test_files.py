"""Files with live attributes: sizes that vary, commands, and what an operator may be given."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.cli import main
from remate.errors import DimsError
from remate_runtime import ScheduleError, apply
from remate_runtime.flat_step import Number, Op
from remate_runtime.format import encode, fingerprint, load
from remate_runtime.operator_calls import overload
from remate_runtime.operator_calls.overloads import check_operator

CORPUS = Path(__file__).parents[2] / "schema/corpus/valid/live.json"
BUILD = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop, self.tau = nn.Linear(4, 4), nn.Dropout(0.1), 0.7
    def forward(self, x):
        return (self.drop(self.linear(x)) / self.tau).sin().mean()
def build():
    torch.manual_seed(0)
    return Net(), (torch.ones(3, 4),)
"""


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.alpha = nn.Linear(4, 4), 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(self.linear(x)) * (1 - self.alpha) + x * self.alpha).sum()


class BySize(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * (self.alpha / x.shape[0])).sum()


@pytest.mark.slow
def test_sizes_and_attributes_may_both_vary() -> None:
    options: dict[str, Any] = {"cost": "cpu", "effort": "quick", "dims": {"x": {0: "b"}}, "live": ["alpha"]}
    model = Scaled()
    schedule: Any = remate.plan(model, (torch.randn(12, 4),), budget="100%", **options)
    planned: Any = apply(model, schedule)
    eager: Any = copy.deepcopy(model)
    for size, alpha in ((12, 0.25), (5, 2.0), (2, -1.0)):
        x, gradients = torch.randn(size, 4), []
        for module in (planned, eager):
            module.alpha = alpha
            module.zero_grad()
            module(x).backward()
            gradients.append(module.linear.weight.grad)
        assert torch.equal(*gradients)


def test_a_number_of_both_is_refused() -> None:
    options: dict[str, Any] = {"cost": "cpu", "effort": "quick", "dims": {"x": {0: "b"}}, "live": ["alpha"]}
    with pytest.raises(DimsError, match=r"takes alpha/12 at one of them and alpha/7(.|\n)*one after the other"):
        remate.plan(BySize(), (torch.randn(12, 4),), budget="100%", **options)


def test_after_freezing_the_rest_reads_them_still() -> None:
    model = Scaled()
    schedule = remate.plan(model, (torch.randn(3, 4),), budget="100%", cost="cpu", effort="quick", live=["alpha"])
    planned: Any = apply(model, schedule)
    planned.linear.bias.requires_grad_(False)
    eager: Any = copy.deepcopy(model)
    x, gradients = torch.randn(3, 4), []
    for module in (planned, eager):
        module.alpha = 0.75
        module.zero_grad()
        module(x).backward()
        gradients.append(module.linear.weight.grad)
    assert torch.equal(*gradients)


@pytest.mark.slow
def test_commands_keep_what_is_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.py").write_text(BUILD)
    target, path = f"{tmp_path / 'one.py'}:build", str(tmp_path / "s.json")
    requested = ["--budget", "100%", "--cost", "cpu", "--effort", "quick", "--live", "tau", "drop.*"]
    assert main(["plan", target, *requested, "-o", path]) == 0
    assert "drop.p  above 0 and below 1" in capsys.readouterr().out
    assert main(["check", path, "--model", target, "--step"]) == 0
    assert main(["run", path, "--model", target, "--steps", "1"]) == 0
    again = str(tmp_path / "again.json")
    assert main(["replan", path, "--model", target, "-o", again]) == 0
    assert encode(load(again)) == encode(load(path))
    bound = str(tmp_path / "bound.json")
    assert main(["rebind", path, "--model", target, "-o", bound]) == 0
    assert load(bound).model.live == load(path).model.live


def test_what_was_planned_is_no_part_of_the_fingerprint() -> None:
    schedule = load(CORPUS)
    live = {
        name: replace(item, planned=item.planned * 0.5) for name, item in schedule.model.live.items() if name != "alpha"
    }
    edited = replace(schedule, model=replace(schedule.model, live=schedule.model.live | live))
    assert fingerprint(edited) == schedule.model.fingerprint
    wider = replace(schedule.model.live["alpha"], min=-1)
    widened = replace(schedule, model=replace(schedule.model, live=schedule.model.live | {"alpha": wider}))
    assert fingerprint(widened) != schedule.model.fingerprint


@pytest.mark.parametrize(
    ("op", "args", "told"),
    [
        ("aten.arange", (Number("%0", (0,)),), "decides a size"),
        ("aten.select.int", (0, Number("%0", (0,)), 0), "neither a float nor a tensor"),
        ("aten.sum.dim_IntList", (0, (Number("%0", (0,)),)), "is a list"),
    ],
)
def test_operators_are_given_numbers_where_they_take_one(op: str, args: tuple[Any, ...], told: str) -> None:
    live = overload(op)
    operation = Op("id", op, args, {}, (), (1,), False, False, False)
    with pytest.raises(ScheduleError, match=told):
        check_operator(operation, live)
