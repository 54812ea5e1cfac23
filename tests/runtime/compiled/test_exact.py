"""Where a rounding would choose, compiled steps run the operations of eager: their recomputations give the same
bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import apply
from remate_runtime.engine.compiled.exact import exact
from remate_runtime.flat_step import FlatRecompute, Graph, expand
from remate_runtime.link import link

from ..small import data, seeded
from ..stepping import everything, just_in_time, no_recomputes, schedule_of


class Inner(nn.Module):
    """Numbers between 0 and 1 that reductions choose among."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.one, self.two, self.body = nn.Linear(37, 37), nn.Linear(37, 37), body
        self.table = nn.Embedding(8, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.one(x))
        return self.body(self, torch.softmax(nn.functional.gelu(h) * torch.exp(torch.sin(h)), -1), h)


def kept(self: Any, z: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return (z * (z >= z.topk(3).values[..., -1:])).square().sum()


def routed(self: Any, z: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    values, at = z.topk(3)
    return (values * self.two(h).gather(1, at)).square().sum()


def bucketed(self: Any, z: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    far = (torch.log(torch.arange(1, 38).float()) * 2).to(torch.long).clamp(max=7)
    return (z @ self.table(far)).square().sum()


CASES: dict[str, Callable[..., Any]] = {
    "amax": lambda self, z, h: z.amax(-1).square().sum(),
    "max": lambda self, z, h: z.max() * self.two(z).sum(),
    "kept": kept,
    "routed": routed,
    "bucketed": bucketed,
    "plain": lambda self, z, h: self.two(z).relu().square().sum(),
}


def without_extremes(graph: Graph) -> list[FlatRecompute]:
    return [
        recompute
        for recompute in just_in_time(graph)
        if graph.operations[recompute.op].op.split(".")[1] not in ("amax", "max")
    ]


def left_out(name: str, recomputes: Callable[[Graph], Any]) -> set[str]:
    """The operators that this case wants exact."""
    written = expand(schedule_of(seeded(Inner(CASES[name])), (data(8, 37),), recomputes=recomputes))
    result = exact(link(written.graph, written.recomputes))
    return {written.graph.operations[at].op.split(".")[1] for at in result}


@pytest.mark.quick("kept4")
@pytest.mark.parametrize(
    ("name", "kept", "again"),
    [
        ("amax", {"amax", "eq"}, {"_softmax"}),
        ("max", {"max", "eq"}, {"_softmax"}),
        ("kept", {"ge", "topk"}, {"_softmax"}),
        ("routed", set(), {"_softmax", "topk"}),
        ("bucketed", {"arange", "log", "mul", "_to_copy"}, set()),
        ("plain", set(), set()),
    ],
)
def test_what_rounding_would_decide_is_interpreted(name: str, kept: set[str], again: set[str]) -> None:
    assert left_out(name, no_recomputes) == kept
    assert left_out(name, without_extremes) == kept | again
    if again:  # all of forward runs again: what they are made of, too
        assert left_out(name, everything) == kept | again | {"addmm", "tanh", "gelu", "sin", "exp", "mul"}


def test_the_maximum_of_a_pooling_is_compiled_but_where_its_places_are_read() -> None:
    class Pooled(nn.Module):
        def __init__(self, places: bool) -> None:
            super().__init__()
            self.conv, self.places = nn.Conv2d(3, 4, 3, padding=1), places

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result, at = nn.functional.max_pool2d(self.conv(x).relu(), 2, return_indices=True)
            return (nn.functional.max_unpool2d(result, at, [2, 2]) if self.places else result).square().sum()

    for places in (False, True):
        written = expand(schedule_of(seeded(Pooled(places)), (data(2, 3, 8, 8),), recomputes=just_in_time))
        result = exact(link(written.graph, written.recomputes))
        assert ("max_pool2d_with_indices" in {written.graph.operations[at].op.split(".")[1] for at in result}) == places


@pytest.mark.slow
@pytest.mark.parametrize("name", ["amax", "routed"])
def test_gradients_through_choices_are_as_near_to_float64_as_eagers(name: str) -> None:
    """In bf16, a compiled recomputation that is not rounded where the first run was finds no element equal to the
    maximum."""
    x, model = data(64, 37).bfloat16(), seeded(Inner(CASES[name])).bfloat16()
    exactly = copy.deepcopy(model).double()
    exactly(x.double()).backward()
    compiled = apply(copy.deepcopy(model), schedule_of(model, (x,), recomputes=without_extremes), engine="compiled")
    for module in (compiled, model):
        module(x).backward()

    def far(actual: nn.Module) -> float:
        pairs = [(p.grad, q.grad) for p, q in zip(actual.parameters(), exactly.parameters(), strict=True)]
        return max(float((a.double() - b).norm() / b.norm()) for a, b in pairs if a is not None and b is not None)

    assert far(compiled) <= 1.5 * far(model)
