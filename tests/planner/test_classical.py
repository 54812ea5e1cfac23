"""The classical strategies: Rotor's dynamic programme against enumeration, and what all of them promise on models."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import nn

from remate.api.plan import prepare
from remate.errors import InfeasibleError
from remate.partition.hierarchy import Hierarchy
from remate.strategy import Candidate, Context, Deadline, Request, StepInstance, candidates, policy, solve
from remate.strategy.chain import checkpoint, rotor_step
from remate.strategy.chain.chain import chain_of, chains_of
from remate.strategy.chain.rotor import ChainStage, SavingWay, Table
from remate.strategy.registry import strategy as strategy_named
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate
from tests.models import ZOO

CLASSICAL = ("checkpoint-blocks", "chen-sqrt", "rotor")
MODELS = ("tiny_gpt", "unet", "mlp_mixer")
SHARES = (0.9, 0.7, 0.5, 0.2)

# first run up to here, backward still to do from here, outputs held, stages saved, where a run is passing through
State = tuple[int, int, frozenset[int], frozenset[int], int]


def persistent(chain: list[ChainStage], memory: int) -> float:
    """Least time of all persistent schedules of a chain, by search: what is kept stays until backward used it. Output
    -1 is the input of the chain, which takes no memory."""
    start: State = (-1, len(chain) - 1, frozenset([-1]), frozenset(), -1)
    queue: list[tuple[int, int, State]] = [(0, 0, start)]
    seen: set[State] = set()
    count = 0
    while queue:
        time, _, state = heapq.heappop(queue)
        if state[1] < 0:
            return time
        if state in seen:
            continue
        seen.add(state)
        for extra, following in steps(chain, memory, state):
            count += 1
            heapq.heappush(queue, (time + extra, count, following))
    return float("inf")


def steps(chain: list[ChainStage], memory: int, state: State) -> Iterator[tuple[int, State]]:
    reached, backward_start, held, saved, passing = state
    used = sum(chain[k].carried for k in held if k >= 0) + sum(chain[k].ways[0].saved for k in saved)
    through = chain[passing].carried if passing >= 0 and passing not in held and passing not in saved else 0
    if backward_start in saved and backward_start - 1 in held | saved | {passing}:
        if used + through - chain[backward_start].ways[0].saved + chain[backward_start].ways[0].in_backward <= memory:
            yield (
                0,
                (
                    reached,
                    backward_start - 1,
                    held - {backward_start - 1, backward_start},
                    saved - {backward_start},
                    -2,
                ),
            )
        return
    for k in range(backward_start + 1):
        if k in saved or k - 1 not in held | saved | {passing}:
            continue
        here = used + (through if passing == k - 1 else 0)
        recompute = k <= reached
        stays = held | ({k - 1} if k - 1 == passing and k - 1 not in saved else set())
        if here + chain[backward_start].base + chain[k].in_passing <= memory and k < backward_start:
            time = chain[k].again if recompute else 0
            for kept in {held, stays}:
                yield time, (max(reached, k), backward_start, frozenset(kept), saved, k)
        if here + chain[backward_start].base + chain[k].ways[0].in_forward <= memory:
            time = (chain[k].every if k < backward_start else chain[k].last) if recompute else 0
            yield time, (max(reached, k), backward_start, frozenset(stays), saved | {k}, -2)


def random_chain(chance: random.Random, count: int, passing: int = 4) -> list[ChainStage]:
    """passing: most bytes that a run for the output only needs beside its input and output."""
    chain = []
    for _ in range(count):
        carried = chance.randint(1, 6)
        saved = carried + chance.randint(0, 10)
        again = chance.randint(1, 9)
        way = SavingWay(saved, saved + chance.randint(0, 3), saved + chance.randint(0, 6))
        base = chance.randint(0, 4)
        chain.append(
            ChainStage(carried, carried + chance.randint(0, passing), base, again, again + 2, again + 1, (way,))
        )
    return chain


@pytest.mark.parametrize("passing", [4, 20])
@pytest.mark.parametrize("seed", range(12))
def test_rotor_is_the_optimal_persistent_schedule(seed: int, passing: int) -> None:
    chance = random.Random(seed)
    chain = random_chain(chance, chance.randint(2, 5), passing)
    table = Table(chain, 60)  # one slot per byte
    for memory in range(5, 60, 2):
        result = float(table.cost[0, -1, memory])
        assert result == persistent(chain, memory), memory
        assert (table.moves(memory) is None) == (result == float("inf"))


@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [2, 3, 7, 20, 35])
def test_on_a_homogeneous_chain_rotor_takes_what_revolve_takes(length: int, snapshots: int) -> None:
    """A. Griewank and A. Walther, "Revolve", ACM TOMS 26, 2000: r * l - C(s + r, r - 1) forward steps run again for a
    chain of l with s snapshots, where r is the least with l <= C(s + r, r). The input is among theirs and takes no
    memory here; what has just been run does."""
    way = SavingWay(1000, 0, 0)  # what a backward reads never stays
    table = Table([ChainStage(1, 0, 0, 1, 1, 1, (way,))] * length, 60)  # one slot per byte
    repeated = next(r for r in range(1, length + 1) if length <= math.comb(snapshots + r, r))
    advanced = repeated * length - math.comb(snapshots + repeated, repeated - 1)
    assert float(table.cost[0, -1, snapshots]) == advanced


def test_rotor_runs_every_backward_once_and_in_order() -> None:
    chain = random_chain(random.Random(7), 12)
    table = Table(chain, 80)
    least = table.smallest()
    assert least is not None
    for memory in range(least, 80, 6):
        moves = table.moves(memory)
        assert moves is not None
        assert [move.stage for move in moves if move.kind == "back"] == list(range(11, -1, -1))
        first = [next(n for n, move in enumerate(moves) if move.stage == k) for k in range(12)]
        assert first == sorted(first)


def test_rotor_without_room() -> None:
    table = Table(random_chain(random.Random(1), 3), 2)
    assert table.smallest() is None
    assert table.moves(2) is None


@cache
def step_of(name: str) -> Hierarchy:
    return prepare(*ZOO[name].build(), cost="h200")


def instance_of(name: str) -> StepInstance:
    return StepInstance(step_of(name).captured.graph, step_of(name).parts)


@pytest.mark.quick("mlp_mixer-chen")
@pytest.mark.parametrize("strategy", CLASSICAL)
@pytest.mark.parametrize("name", MODELS)
def test_candidates_are_what_they_say(name: str, strategy: str) -> None:
    instance = instance_of(name)
    base = instance.baseline
    for share in SHARES:
        request, context = Request(int(share * base.peak)), Context(Deadline(), base.time)
        solution = list(candidates(strategy_named(strategy), instance, request, context))
        assert solution
        for candidate in solution:
            timeline = simulate(link(instance.graph, candidate.recomputes))
            assert (timeline.peak, timeline.time) == (candidate.peak, candidate.time)
            assert (candidate.strategy, candidate.solver) == (strategy, "none")
            assert candidate.time >= base.time
        assert min(candidate.peak for candidate in solution) < base.peak


def smallest(instance: StepInstance, strategy: str) -> list[Candidate]:
    """The plan of a strategy for the proven floor."""
    context = Context(Deadline(), instance.baseline.time)
    return list(candidates(strategy_named(strategy), instance, Request(instance.floor), context))


@pytest.mark.quick("mlp_mixer")
@pytest.mark.parametrize("name", MODELS)
def test_never_faster_than_ours_and_never_over_budget(name: str) -> None:
    instance = instance_of(name)
    fitted = 0
    for share in (0.8, 0.6):
        budget = int(share * instance.baseline.peak)
        ours = solve(instance, Request(budget))
        for strategy in CLASSICAL:
            reached = min(c.peak for c in smallest(instance, strategy))
            if reached > budget:
                with pytest.raises(InfeasibleError, match=f"infeasible for {strategy}") as caught:
                    solve(instance, Request(budget), policy(strategy))
                assert caught.value.smallest == reached
                continue
            fitted += 1
            solution = solve(instance, Request(budget), policy(strategy))
            assert solution.peak <= budget
            assert solution.strategy == strategy
            assert solution.time >= ours.time
    assert fitted >= 2


@pytest.mark.slow
def test_chain_of_blocks_is_seen() -> None:
    chain = chain_of(instance_of("tiny_gpt"))
    assert len(chain.stages) > 3
    inner = chain.stages[1:-1]
    assert all(stage.carried > 0 for stage in inner)
    assert all(chain.retained(k, chain.drop[k]) < chain.retained(k, chain.keep[k]) for k in range(1, len(inner)))


@pytest.mark.slow
def test_skips_last() -> None:
    chain = chain_of(instance_of("unet"))
    assert any(stage.apart for stage in chain.stages), "what reaches far is kept all the time"


def test_without_blocks_the_chain_is_one_of_segments() -> None:
    instance = StepInstance(step_of("tiny_gpt").captured.graph)
    stages = chain_of(instance).stages
    assert len(stages) > 1
    assert [stage.forward[1] for stage in stages[:-1]] == [stage.forward[0] for stage in stages[1:]]
    assert [stage.backward[0] for stage in stages[:-1]] == [stage.backward[1] for stage in stages[1:]]
    assert stages[0].backward[1] == len(instance.graph.operations)


@pytest.mark.slow
@pytest.mark.quick("unet")
@pytest.mark.parametrize("strategy", ["chen-sqrt", "rotor"])
@pytest.mark.parametrize("name", ["tiny_gpt", "unet"])
def test_without_blocks_the_best_of_several_chains_is_taken(
    name: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = StepInstance(step_of(name).captured.graph)
    chains = chains_of(instance)
    assert chains[0] is chain_of(instance)
    assert len({chain.blocks for chain in chains}) == len(chains) > 1
    budgets = [int(share * instance.baseline.peak) for share in SHARES]
    together = [fastest(instance, strategy, budget) for budget in budgets]
    alone: list[list[float]] = []
    for chain in chains:
        for module in (checkpoint, rotor_step):
            monkeypatch.setattr(module, "chains_of", lambda _, chain=chain: (chain,))
        alone.append([fastest(instance, strategy, budget) for budget in budgets])
    assert together == [min(times) for times in zip(*alone, strict=True)]
    assert together < alone[0], "coarse segments are not the best everywhere"


def fastest(instance: StepInstance, strategy: str, budget: int) -> float:
    """Time in ns of a strategy's fastest plan within a budget; infinite if there is none."""
    context = Context(Deadline(), instance.baseline.time)
    solution = candidates(strategy_named(strategy), instance, Request(budget), context)
    return min((candidate.time for candidate in solution if candidate.peak <= budget), default=math.inf)


class Adapter(nn.Module):
    """A frozen layer and a low-rank branch beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.base(x) + self.up(self.down(x))) * mask


class Stem(nn.Module):
    """The frozen stage, which passes a mask to all layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.mask = nn.Embedding(16, width), nn.Linear(width, width)
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        return x, torch.sigmoid(self.mask(x))


class Adapted(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.stem = Stem(width)
        self.layers = nn.ModuleList(Adapter(width) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, mask = self.stem(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return x.square().mean()


def test_a_frozen_base_is_planned() -> None:
    """A stage without backward keeps the values that it passes on, even if the last layer reads them."""
    step = prepare(Adapted(32, 6), (torch.zeros(64, dtype=torch.long),), cost="h200")
    instance = StepInstance(step.captured.graph, step.parts)
    chain = chain_of(instance)
    lasting = [k for k, stage in enumerate(chain.stages) if stage.apart and stage.backward[0] == stage.backward[1]]
    assert lasting, "the mask is made in a stage without backward"
    for k in range(len(chain.stages)):
        assert chain.retained(k, chain.keep[k]) >= 0
    for strategy in ("rotor", "chen-sqrt"):
        assert min(c.peak for c in smallest(instance, strategy)) < instance.baseline.peak


def test_selective_saves_what_fits() -> None:
    instance = instance_of("tiny_gpt")
    full = instance.judged(
        checkpoint.segment_recomputes(instance.problem, checkpoint.repeated_segments(instance.blocks)), "full"
    )
    budget = (full.peak + instance.baseline.peak) // 2
    some = solve(instance, Request(budget), policy("selective"))
    assert some.peak <= budget
    assert instance.baseline.time < some.time < full.time
    assert len(some.recomputes) < len(full.recomputes)
    with pytest.raises(InfeasibleError) as refused:
        solve(instance, Request(full.peak - 1), policy("selective"))
    assert refused.value.smallest == full.peak
