"""What a schedule assumes of gradients is what happens: peaks, measured, are the predicted ones to the byte."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from remate_runtime.flat_step import expand
from remate_runtime.format import GRADIENTS, Gradients
from remate_runtime.link import link, simulate

from .small import data, seeded
from .stepping import just_in_time, no_recomputes, schedule_of
from .test_deliveries import Wide


class Convolutions(nn.Module):
    """Few activations, many weights; a frozen one among them."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 64, 256, 256, 64)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.layers[1].weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return x.square().mean()


class Language(nn.Module):
    """The embedding is the head, too; one parameter is the three matrices of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.join = nn.Embedding(2048, 128), nn.Parameter(torch.zeros(3, 512, 128))
        self.out, self.head = nn.Linear(512, 128), nn.Linear(128, 2048, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = (x @ part.t() for part in self.join)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Mapped(nn.Module):
    """Its second input takes a gradient, which is complete before most others, and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.wide:
            x = torch.tanh(layer(x))
        return (x @ y).square().mean()


class Shared(nn.Module):
    """Two parameters have one gradient, two others halves of one, and one a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.turned = (nn.Parameter(torch.zeros(512, 512)) for _ in range(3))
        self.parts = nn.ParameterList(torch.zeros(256, 512) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x @ (self.one + self.two))
        x = torch.tanh(x @ torch.cat(list(self.parts)))
        return torch.tanh(x @ self.turned.t()).square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "wide": (Wide, lambda: (data(16, 512),)),
    "convolutions": (Convolutions, lambda: (data(2, 8, 12, 12),)),
    "language": (Language, lambda: (torch.arange(64).reshape(2, 32) * 7,)),
    "shared": (Shared, lambda: (data(8, 512),)),
    "mapped": (Mapped, lambda: (data(16, 512), data(512, 512).requires_grad_())),
}


def prepare(model: nn.Module, kind: Gradients) -> None:
    """Make the assumption true: `.grad` as it is before a step."""
    if kind == "accumulated":
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    else:
        model.zero_grad()


def consume(model: nn.Module) -> None:
    """SGD in backward."""

    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.01)  # type: ignore[arg-type]
        parameter.grad = None

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(update)


@pytest.mark.quick("shared-just_in_time-retained")
@pytest.mark.eager  # the simulator says what the interpreter holds
@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
@pytest.mark.parametrize("name", CASES)
def test_measured_is_predicted(name: str, recomputes: Callable, kind: Gradients) -> None:
    build, given = CASES[name]
    model, args = seeded(build()), given()
    schedule = schedule_of(model, args, recomputes=recomputes)
    if kind == "consumed":
        consume(model)
    scheduled = apply(model, schedule)

    def step() -> None:
        torch.manual_seed(0)
        scheduled(*args).backward()

    expanded = expand(schedule)
    predicted = simulate(link(costed(expanded.graph, "measured"), expanded.recomputes), kind).peak
    for _ in range(2):  # the first one warms up
        prepare(model, kind)
        for item in args:
            item.grad = None
        measured = peak_bytes(step)
    assert measured == predicted


def halve(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@pytest.mark.quick("shared")
@pytest.mark.parametrize("name", CASES)
def test_added_up_gradients_are_eagers(name: str) -> None:
    """Over several steps, through hooks of parameters: what is shared, tied or a view is nobody else's in `.grad`."""
    build, given = CASES[name]
    ours, eager = seeded(build()), seeded(build())
    scheduled = apply(ours, schedule_of(ours, given(), recomputes=just_in_time))
    for model, called in ((ours, scheduled), (eager, eager)):
        trained = [p for p in model.parameters() if p.requires_grad]
        trained[0].register_hook(lambda gradient: 2 * gradient)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(halve)
        for step in range(3):
            torch.manual_seed(step)
            called(*given()).backward()
    for left, right in zip(ours.parameters(), eager.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None)
        assert left.grad is None or torch.equal(left.grad, right.grad)
