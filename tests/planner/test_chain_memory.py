"""What a chain counts for its programme, held against the simulator; cheap values, and plans that need little at
once."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import pytest
import torch
from torch import nn

from remate.api.plan import prepare
from remate.strategy import Context, Deadline, Request, StepInstance
from remate.strategy.chain.chain import Chain, chain_of
from remate.strategy.chain.lean import lean_plans
from remate.strategy.chain.rotor_step import Programme, recomputes
from remate.strategy.effort import NORMAL
from tests.models import SMALLEST, ZOO

from .test_passes import chain

portfolio = import_module("remate.strategy.portfolio")  # a function of this name hides it
OVER, UNUSED = 1.03, 0.8  # of the budget: what is counted too little, and what large values may leave free


class Layer(nn.Module):
    """Reads its input, and a bias that all layers read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x + bias)))


class Stem(nn.Module):
    """Two embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.bias = nn.Embedding(16, width), nn.Embedding(16, width)
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.embed(ids), torch.tanh(self.bias(ids))


class Biased(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.stem = Stem(width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.stem(ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x.square().mean()


@cache
def known(name: str) -> tuple[StepInstance, Chain]:
    if name == "biased":
        with torch.device("meta"):
            built = Biased(512, 8), (torch.zeros(65536, dtype=torch.long),)
        step = prepare(*built, cost="h200")
    else:
        step = prepare(*ZOO[name].build(**(SMALLEST[name] if name == "t5" else {})), cost="h200")
    instance = StepInstance(step.captured.graph, () if name == "biased" else step.parts)
    return instance, chain_of(instance)


@cache
def lean(name: str) -> Programme:
    instance, chain = known(name)
    plans = {k: lean_plans(chain, k, NORMAL, Deadline()) for k in range(len(chain.stages))}
    return Programme(chain, instance.baseline.peak, instance.floor, plans)


@pytest.mark.parametrize("share", [0.7, 0.5, 0.3])
@pytest.mark.parametrize(
    "name",
    [
        "biased",
        pytest.param("tiny_gpt", marks=pytest.mark.slow),
    ],
)
def test_what_the_programme_counts_is_what_the_simulator_finds(name: str, share: float) -> None:
    instance, _ = known(name)
    budget = share * instance.baseline.peak
    answer = lean(name).ask(budget)
    assert answer is not None
    result = instance.judged(answer.recomputes, "rockmate")
    assert UNUSED * budget <= result.peak <= OVER * budget


def test_what_is_cheap_to_make_from_nothing_is_let_go_and_made_again() -> None:
    instance, chain = known("biased")
    problem = instance.problem
    bias = [s for s in chain.cheap if s in chain.lasting]
    handed = [s for s in chain.cheap if s not in chain.lasting]
    assert bias, "what all layers read"
    assert handed, "what the first layer is handed"
    programme = lean("biased")
    answer = programme.ask(0.3 * instance.baseline.peak)
    assert answer is not None
    values = [recompute.op for recompute in answer.recomputes if recompute.before >= problem.backward_start]
    for s in bias:
        assert values.count(problem.producer[s]) <= 1, "once for all that read it"
    assert any(problem.producer[s] in values for s in bias)
    assert any(problem.producer[s] in values for s in handed)


def test_operations_that_may_run_once_are_not_cheap() -> None:
    instance, chain = known("biased")
    once = {f for result in chain.cheap.values() for f in result}
    assert once
    bound = StepInstance(instance.graph, instance.blocks, once)
    assert not chain_of(bound).cheap


def test_a_programme_without_plans_makes_cheap_values_once_each_time_their_stage_runs() -> None:
    instance, chain = known("biased")
    least = Programme(chain, instance.baseline.peak, instance.floor).least()
    assert least is not None
    result = instance.judged(least, "rotor")
    assert result.peak < 0.7 * instance.baseline.peak


def test_lean_plans_come_near_the_floor_of_their_stage() -> None:
    _, chain = known("biased")
    for k in range(1, len(chain.stages) - 1):
        plans = lean_plans(chain, k, NORMAL, Deadline())
        floor = StepInstance(chain.leaf[k].graph).floor
        least = min(max(plan.forward_peak, plan.backward_peak) for plan in plans)
        usual = max(chain.drop[k].forward_peak, chain.drop[k].backward_peak)
        assert least <= 1.1 * floor
        assert least < usual
        assert len({plan.figures for plan in plans}) == len(plans)


def test_no_plans_after_the_deadline() -> None:
    _, chain = known("biased")
    deadline = Deadline()
    deadline.interrupt()
    assert lean_plans(chain, 1, NORMAL, deadline) == []


def test_recomputes_come_in_step_order() -> None:
    instance, chain = known("biased")
    moves = lean("biased")
    answer = moves.ask(0.4 * instance.baseline.peak)
    assert answer is not None
    assert list(answer.recomputes) == sorted(answer.recomputes, key=lambda recompute: recompute.before)
    assert recomputes(chain, [], moves.offered) == []


def test_the_beam_is_left_out_of_a_large_step_whose_chain_is_near_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    about = chain(4, 10, 100, (50, 50), 0, 900)
    request, context = Request(about.floor), Context(Deadline(), about.baseline.time)
    context.best = about.baseline
    context.fitted.add("rockmate")
    assert portfolio.worth_states(about, request, context), "small"
    monkeypatch.setattr(portfolio, "LARGE", 4)
    assert not portfolio.worth_states(about, request, context)
    context.bound //= 2
    assert portfolio.worth_states(about, request, context), "far from the proof"
    context.fitted.clear()
    assert portfolio.worth_states(about, request, context)


def test_nothing_is_squeezed_where_what_fits_is_near_the_proof() -> None:
    about = chain(4, 10, 100, (50, 50), 0, 900)
    request, context = Request(about.floor), Context(Deadline(), about.baseline.time)
    assert portfolio.worth_squeezing(about, request, context)
    context.best = about.baseline
    assert not portfolio.worth_squeezing(about, request, context)
