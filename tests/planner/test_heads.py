"""Chains whose last stage is cut in two where the loss takes nearly all of the budget."""

from __future__ import annotations

import itertools

import pytest

from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.chain import rockmate
from remate.strategy.chain.chain import chain_of, segment_blocks
from remate.strategy.chain.head import cut_heads

from .strategy_graphs import transformer


def with_head(layers: int, head: int) -> StepInstance:
    graph = transformer(layers, head=head)
    return StepInstance(graph, segment_blocks(StepInstance(graph).problem, 18))


def test_the_last_stage_is_cut_where_the_loss_is_most_of_the_budget() -> None:
    about = with_head(8, 40)
    plain, backward_start = chain_of(about), about.problem.backward_start
    assert cut_heads(about, 4 * about.floor) == ()
    assert cut_heads(StepInstance(about.graph), about.floor) == (), "there is no block"
    chains = cut_heads(about, about.floor)
    assert len(chains) == 2
    for chain in chains:
        assert chain.stages[: len(plain.stages) - 1] == plain.stages[:-1]
        assert len(chain.stages) == len(plain.stages) + 1
        for stage, following in itertools.pairwise(chain.stages):
            assert stage.forward[1] == following.forward[0] < stage.backward[1]
            assert stage.backward[0] == following.backward[1]
        assert chain.stages[-1].forward[1] == plain.stages[-1].forward[1]
        assert chain.stages[-1].backward[0] == backward_start


@pytest.mark.slow
def test_what_enters_the_head_need_not_wait_for_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    about = with_head(12, 100)
    budget = int(1.04 * about.floor)
    solution = solve(about, Request(budget), policy("rockmate"))
    assert solution.peak <= budget
    monkeypatch.setattr(rockmate, "cut_heads", lambda *_: ())
    whole = solve(with_head(12, 100), Request(budget), policy("rockmate"))
    assert solution.time < whole.time - 0.005 * about.baseline.time
