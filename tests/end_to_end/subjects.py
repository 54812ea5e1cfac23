"""Small real models planned once, with steps of eager to compare with. No operator here needs workspace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

import remate
from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.edit import Editor
from remate.step_measurement.allocator import peak_bytes
from remate_runtime.format.schedule import Schedule
from tests.models import ZOO

from ..runtime.small import data, seeded
from ..runtime.stepping import assert_same, loss_of, step

# The files are planned with estimated workspaces, which are upper bounds: of what numbers take that become tensors
# here.
PEAK_TOLERANCE = 64


class Layer(nn.Module):
    def __init__(self, width: int, norm: nn.Module) -> None:
        super().__init__()
        self.up, self.norm, self.down, self.drop = (
            nn.Linear(width, 2 * width),
            norm,
            nn.Linear(2 * width, width),
            nn.Dropout(0.3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.norm(self.up(x)))))


class Stack(nn.Module):
    """Equal layers with dropout, and batch norm or layer norm; a slice and a view that later layers share."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(16, norm(32)) for _ in range(4))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x[:, :16]
        for layer in self.layers:
            first = layer(first)
        logits = self.head(first * torch.sigmoid(x[:, 16:]))
        return logits.logsumexp(1).mean(), logits


def _stack(norm: Callable[[int], nn.Module]) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return seeded(Stack(norm)), (data(256, 32),), {}


BUILD: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "batch_norm": lambda: _stack(nn.BatchNorm1d),
    "layer_norm": lambda: _stack(nn.LayerNorm),
    "gpt": ZOO["tiny_gpt"].build,
}
SEEDS = (0, 1)


class Subject(NamedTuple):
    """wanted: what two steps of eager give, by the seed of the generator."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    schedule: Schedule
    wanted: tuple[dict[str, Any], ...]

    def fresh(self) -> nn.Module:
        """The model as it was before any step."""
        return copy.deepcopy(self.model)


@cache
def subject(name: str) -> Subject:
    """The model planned at three quarters of its peak, with costs that no machine changes, by the quickest strategy.
    Dropout is recomputed, too, so that nearly every edited file replays random numbers."""
    model, args, kwargs = BUILD[name]()
    schedule = _with_dropout(remate.plan(model, args, kwargs, budget="75%", cost="cpu", strategy="greedy"))
    eager = copy.deepcopy(model)
    return Subject(model, args, kwargs, schedule, tuple(step(eager, args, kwargs, seed=seed) for seed in SEEDS))


def _with_dropout(schedule: Schedule) -> Schedule:
    """Recompute each dropout before the first operation of backward that reads its mask."""
    editor = Editor(analyse(schedule))
    graph = editor.opened.graph
    for op in graph.operations[: graph.backward_start]:
        if op.random:
            written = {value for value in op.writes if value is not None}
            reader = next(o for o in graph.operations[graph.backward_start :] if written.intersection(o.reads))
            editor.recompute([op.id], reader.id)
    return editor.result().schedule


def assert_eager(planned: nn.Module, of: Subject) -> None:
    """Two steps with fresh buffers give eager's loss, gradients, buffers and generator, bit for bit."""
    for seed, wanted in zip(SEEDS, of.wanted, strict=True):
        assert_same(step(planned, of.args, of.kwargs, seed=seed), wanted)


def executed_peak(planned: nn.Module, of: Subject) -> int:
    """Bytes that the allocator counts over one step; the step before it has warmed up."""
    planned.zero_grad()

    def whole_step() -> None:
        outputs = planned(*of.args, **of.kwargs)  # all of them are held to the end, as a schedule counts them
        loss_of(outputs).backward()

    return peak_bytes(whole_step)
