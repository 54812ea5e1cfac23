"""Gradients of outputs in other memory layouts: planned by name, learned by `auto`, otherwise a warning."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
import remate_runtime
from remate.cli import main
from remate.errors import CaptureError
from remate_runtime.errors import ScheduleError

from .small import data, seeded


class Segmenting(nn.Module):
    def __init__(self, within: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
        self.within = within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return pixels(y) if self.within else y


def pixels(y: torch.Tensor) -> torch.Tensor:
    return y.permute(0, 2, 3, 1).reshape(-1, 5)


def loss(y: torch.Tensor, within: bool) -> torch.Tensor:
    return nn.functional.cross_entropy(y if within else pixels(y), torch.arange(4 * 11 * 11) % 5)


def trained(model: Any, within: bool) -> list[torch.Tensor]:
    loss(model(data(4, 3, 11, 11)), within).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def planned(within: bool, differentiate: list[str] | None = None) -> Any:
    model = seeded(Segmenting(within)).train()
    call = (data(4, 3, 11, 11),)
    schedule = remate.plan(model, call, budget="100%", cost="cpu", differentiate=differentiate, progress=None)
    return remate_runtime.apply(model, schedule)


def test_a_permuted_gradient_warns_and_the_way_out_is_bitwise() -> None:
    with pytest.warns(UserWarning, match="'output' has a different memory layout than planned") as caught:
        trained(planned(False), False)
    shown = re.search(r"differentiate=(\[.*\])", str(caught[0].message))
    assert shown is not None
    ways = [(True, None), (False, ast.literal_eval(shown[1]))]
    for within, differentiate in ways:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = trained(planned(within, differentiate), within)
        assert all(map(torch.equal, ours, trained(seeded(Segmenting(within)).train(), within)))


def test_expanded_gradients_and_others_are_taken_without_a_warning() -> None:
    model = planned(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(data(4, 3, 11, 11)).sum().backward()
        model(data(4, 3, 11, 11)).square().mean().backward()


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda y: nn.functional.cross_entropy(y, torch.arange(4 * 11 * 11).view(4, 11, 11) % 5),
    "mean square": lambda y: nn.functional.mse_loss(y, torch.ones(4, 5, 11, 11)),
}


@pytest.mark.quick("mean square")
@pytest.mark.parametrize("name", LOSSES)
def test_channels_last_outputs_have_contiguous_gradients(name: str) -> None:
    """As in eager: both losses give a contiguous gradient, whatever the layout of the output is."""
    model = seeded(Segmenting(False)).train().to(memory_format=torch.channels_last)
    x = data(4, 3, 11, 11).to(memory_format=torch.channels_last)
    schedule = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
    assert schedule.model.outputs["gradient_axes"] == [0, 1, 2, 3]
    gradients = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in (remate_runtime.apply(model, schedule), model):
            model.zero_grad()
            LOSSES[name](way(x)).backward()
            gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


@pytest.mark.slow
def test_auto_learns_the_layout_from_the_first_backward() -> None:
    lines: list[str] = []
    model = remate.auto(seeded(Segmenting(False)).train(), "100%", cost="cpu", progress=lines.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model.zero_grad()
            ours = trained(model, False)
    assert all(map(torch.equal, ours, trained(seeded(Segmenting(False)).train(), False)))
    assert sum("planned again" in line for line in lines) == 1


@pytest.mark.parametrize("differentiate", [None, ["output:1,0"]])
def test_a_bias_adds_up_a_transposed_gradient_in_another_order(differentiate: list[str] | None) -> None:
    def gradients(model: Any) -> list[torch.Tensor]:
        nn.functional.mse_loss(model(data(32, 16)).t(), data(24, 32)).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def build() -> nn.Module:
        return seeded(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 24))).train()

    schedule = remate.plan(
        build(), (data(32, 16),), budget="100%", cost="cpu", differentiate=differentiate, dims="none", progress=None
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = gradients(remate_runtime.apply(build(), schedule))
    assert ["differentiate=['output:1,0']" in str(w.message) for w in caught] == [True] * (differentiate is None)
    assert all(map(torch.equal, ours, gradients(build()))) or differentiate is None


class Also(nn.Module):
    """A transposed output whose gradient meets others before a bias adds it up."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.layer, self.after = nn.Linear(16, 24), after

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return (torch.tanh(y), torch.tanh(y).t()) if self.after else (torch.tanh(y) + y.sin(), y.t())


@pytest.mark.parametrize("after", [True, False])
def test_the_layout_of_a_gradient_reaches_a_bias_through_elementwise_operations(after: bool) -> None:
    def gradients(model: Any) -> list[torch.Tensor]:
        torch.stack([y.square().mean() for y in model(data(32, 16))]).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def planned_with(differentiate: list[str]) -> Any:
        model = seeded(Also(after)).train()
        schedule = remate.plan(
            model, (data(32, 16),), budget="100%", cost="cpu", differentiate=differentiate, dims="none", progress=None
        )
        return remate_runtime.apply(model, schedule)

    with pytest.warns(UserWarning, match="different memory layout than planned") as caught:
        gradients(planned_with(["*"]))
    shown = re.search(r"differentiate=(\[.*\])", str(caught[0].message))
    assert shown is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = gradients(planned_with(ast.literal_eval(shown[1])))
    assert all(map(torch.equal, ours, gradients(seeded(Also(after)).train())))


def test_a_linear_layer_flattens_gradients_of_tokens_itself() -> None:
    def gradients(model: Any) -> list[torch.Tensor]:
        nn.functional.cross_entropy(
            model(data(4, 12, 16)).transpose(1, 2), torch.arange(48).view(4, 12) % 24
        ).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    model, twin = (seeded(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 24))).train() for _ in range(2))
    schedule = remate.plan(model, (data(4, 12, 16),), budget="100%", cost="cpu", dims="none", progress=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = gradients(remate_runtime.apply(model, schedule))
    assert all(map(torch.equal, ours, gradients(twin)))


class Two(nn.Module):
    """Two outputs, for a loss that concatenates them: their gradients have gaps."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.norm(self.first(x)), self.second(x)


@pytest.mark.quick("False")
@pytest.mark.parametrize("norm", [True, False])
def test_a_gradient_with_gaps_warns_where_kernels_add_it_up(norm: bool) -> None:
    def gradients(model: Any) -> list[torch.Tensor]:
        model.zero_grad()
        torch.cat(model(data(4, 3, 11, 11)), 1).square().mean().backward()
        return [p.grad for p in model.parameters()]

    lines: list[str] = []
    model = remate.auto(seeded(Two(norm)).train(), "100%", cost="cpu", progress=lines.append)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours, _ = gradients(model), gradients(model)
    assert [str(w.message).startswith("the gradient of output '0' has gaps") for w in caught] == [True] * 2 * norm
    assert not any("planned again" in line for line in lines)
    equal = all(map(torch.equal, ours, gradients(seeded(Two(norm)).train())))
    assert equal or norm


def test_sizes_keep_the_layout() -> None:
    model = seeded(Segmenting(False)).train().to(memory_format=torch.channels_last)
    x, dims = data(4, 3, 11, 11).to(memory_format=torch.channels_last), {"x": {0: "b=2..6"}}
    schedule = remate.plan(model, (x,), budget="1MiB", cost="cpu", dims=dims, progress=None)
    applied = remate_runtime.apply(model, schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (2, 6):
            gradients = []
            for way in (applied, model):
                model.zero_grad()
                way(data(size, 3, 11, 11).to(memory_format=torch.channels_last)).pow(2).mean().backward()
                gradients.append([p.grad for p in model.parameters()])
            assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("layout", ["0,1,2", "0,0,1,2", "channels_last", "9,1,2,3"])
def test_a_layout_that_does_not_fit_is_refused(layout: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), data(4, 3)
    with pytest.raises(CaptureError, match="of 2 axes cannot have the memory layout"):
        remate.plan(model, (x,), cost="cpu", differentiate=[f"output:{layout}"], progress=None)


@pytest.mark.quick("axes3")
@pytest.mark.parametrize("axes", ["no", [0, 1], [0, 1, 2, 2], [0, 1, 2, 3, 4], [0, 1, 2, True], None])
def test_axes_of_a_file_are_checked(axes: object) -> None:
    model = seeded(Segmenting(False)).train()
    schedule = remate.plan(model, (data(4, 3, 11, 11),), budget="100%", cost="cpu", progress=None)
    outputs = {**schedule.model.outputs, "gradient_axes": axes}
    broken = replace(schedule, model=replace(schedule.model, outputs=outputs))
    with pytest.raises(ScheduleError, match="R016") as refused:
        remate_runtime.apply(model, broken)
    assert "gradient_axes" in str(refused.value)


BUILD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.head(self.body(x))

def build():
    x = torch.ones(2, 3, 9, 9).to(memory_format=torch.channels_last)
    return Net().train().to(memory_format=torch.channels_last), (x,)
"""


@pytest.mark.quick("more2")
@pytest.mark.parametrize("more", [(), ("--at", "body"), ("--differentiate", "output:channels_last")])
def test_a_file_still_fits_its_model(more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, file = tmp_path / "net.py", tmp_path / "plan.json"
    script.write_text(BUILD, encoding="utf-8")
    plan = ["plan", f"{script}:build", "--budget", "100%", "--cost", "cpu", *more, "--output", str(file)]
    assert main(plan) == 0
    assert ("gradient_axes" in file.read_text(encoding="utf-8")) == (not more)  # a part's gradient is that of a layer
    assert main(["check", str(file), "--model", f"{script}:build"]) == 0, capsys.readouterr().err
