"""Sizes that follow from a quotient of a product: pools, windows, steps and padding over a flattened batch."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

import remate_runtime
from remate.profile.costing import MEASURED, costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime.flat_step import expand
from remate_runtime.format import at_size, checked_text, decode
from remate_runtime.link import link, simulate

from .test_plan_dims import features, planned, trained

RANGES = {"x": {0: "b=2..6", 1: "t=20..60"}}
CALLS = [(2, 20), (6, 60), (3, 37), (5, 31), (2, 59), (6, 25)]

pytestmark = pytest.mark.filterwarnings("ignore:.*over its budget")


class Flattened(nn.Module):
    """Layers over all numbers of a batch in one row, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.width = chance.choice([1, 3, 5, 6])
        self.up, self.down = nn.Linear(4, self.width), nn.Linear(1, 3)
        kinds = ["pool", "every", "windows", "pad", "first"]
        self.steps = [(chance.choice(kinds), chance.choice([2, 3, 5, 7, 8])) for _ in range(chance.choice([1, 2, 2]))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = torch.tanh(self.up(x)).flatten()
        for kind, number in self.steps:
            if kind == "pool":
                row = nn.functional.avg_pool1d(row[None], number)[0]
            elif kind == "every":
                row = row[::number].exp()
            elif kind == "windows":
                row = row.unfold(0, number + 1, number).sin().sum(1)
            elif kind == "pad":
                row = nn.functional.pad(row, (0, -row.shape[0] % number)).cos()
            else:
                row = torch.tanh(row[: row.shape[0] // number + 1])
        return self.down(row[:, None]).pow(2).mean()


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(16))
def test_steps_over_a_flattened_batch(seed: int) -> None:
    torch.manual_seed(seed)
    model = Flattened(seed)
    schedule = planned(model, features(3, 37), RANGES, "100%")
    again = decode(checked_text(schedule))
    assert again == schedule
    for b, t in CALLS:
        plain, args = at_size(again, {"b": b, "t": t}), features(b, t)
        theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
        applied = remate_runtime.apply(ours, plain)
        for wanted, actual in zip(trained(theirs, args), trained(applied, args), strict=True):
            assert torch.equal(wanted, actual), (b, t)
        written = expand(plain)
        exact, predicted = (
            simulate(link(graph, written.recomputes)).peak for graph in (costed(written.graph, MEASURED), written.graph)
        )
        ours.zero_grad()
        assert exact == peak_bytes(lambda: applied(*args).backward()) <= predicted, (b, t)  # noqa: B023
