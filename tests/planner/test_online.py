"""Online policies: legal replays, the properties in their papers, and their eviction rules."""

from __future__ import annotations

import math

import pytest

from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.online.coop import Arena
from remate.strategy.online.dtr import Heap, neighbourhood
from remate.strategy.online.replay import StepReplay
from remate.strategy.online.separators import Separators, decomposition
from remate.strategy.online.treewidth import Path, separators_of
from remate_runtime.flat_step import Graph

from .strategy_graphs import Tape, random_graph, transformer

POLICIES = ("dtr", "coop", "treewidth")


def chain(length: int) -> Graph:
    """Equal layers, and a backward that reads the input of each."""
    tape = Tape()
    x = tape.source("x", 10)
    for _ in range(length):
        x = tape.forward((x,), (10,), 10)
    return tape.graph(x)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", POLICIES)
def test_what_the_replay_counts_is_no_less_than_what_is_held(name: str, seed: int) -> None:
    """A replay within a budget is therefore a schedule within it."""
    instance = StepInstance(random_graph(seed, 24))
    around = instance.view(neighbourhood)
    for share in (0.9, 0.75, 0.6):
        budget = int(share * instance.baseline.peak)
        memory = {
            "dtr": lambda: Heap(around),
            "coop": lambda budget=budget: Arena(instance.problem, around, budget),
            "treewidth": lambda: Path(instance.view(separators_of)),
        }[name]()
        recomputes = StepReplay(instance.problem, budget, memory, lambda: False).run()
        if recomputes is not None:
            assert instance.judged(recomputes, name).peak <= budget


@pytest.mark.slow
@pytest.mark.parametrize("length", [16, 64, 256])
def test_a_chain_takes_memory_of_the_logarithm_of_its_length_and_time_of_that(length: int) -> None:
    instance = StepInstance(chain(length))
    solution = solve(instance, Request(int(10 * (3 + 2 * math.log2(length)))), policy("treewidth"))
    assert len(solution.recomputes) <= length * math.log2(length) / 4


@pytest.mark.quick("64")
@pytest.mark.parametrize("length", [64, 256])
def test_dtr_trains_a_chain_of_n_layers_in_the_root_of_it_with_few_recomputes(length: int) -> None:
    """The paper's theorem: within 2 * ceil(sqrt(n)) layers, O(n) runs; the gradient and two layers are counted here
    too."""
    instance = StepInstance(chain(length))
    budget = 10 * (2 * math.isqrt(length) + 6)
    solution = solve(instance, Request(budget), policy("dtr"))
    assert solution.peak <= budget
    assert len(solution.recomputes) <= 2 * length


def test_what_is_cheap_large_and_unused_goes_first() -> None:
    tape = Tape()
    sizes = {"dear": (10, 900), "cheap": (10, 5), "small": (1, 5)}
    by_name = {name: tape.add("synthetic.op", (tape.source(name, 1),), (b,), ns)[0] for name, (b, ns) in sizes.items()}
    last = tape.add("synthetic.op", (tape.source("y", 1),), (10,), 1)[0]
    tape.add("synthetic.op", (*by_name.values(), last), (1,), 1)
    graph = Graph(tuple(tape.values), tuple(tape.operations), 5, (), (), (), tuple(range(len(tape.values))), "cpu")
    instance = StepInstance(graph)
    evicted: list[int] = []
    heap = Heap(instance.view(neighbourhood))
    heap.gone = evicted.append  # type: ignore[method-assign]
    StepReplay(instance.problem, 25, heap, lambda: False).run()
    assert next(s for s in evicted if s >= 0) == by_name["cheap"]


@pytest.mark.parametrize("graph", [random_graph(3, 30), transformer(2), chain(30)], ids=["random", "layers", "chain"])
def test_separators_separate(graph: Graph) -> None:
    """Every edge joins an operation with one in the same part, or in one around it; parts get halved."""
    problem = StepInstance(graph).problem
    bags, parent = decomposition(problem)
    for i in bags:
        for s in problem.reads[i]:
            assert any({i, problem.producer[s]} <= bag for bag in bags.values())
    for i, above in parent.items():
        assert above is None or bags[i] - {i} <= bags[above]
    result = Separators(problem)
    for i in bags:
        assert result.part[i] in result.path[i]
        for s in problem.reads[i]:
            f = problem.producer[s]
            assert result.part[f] in result.path[i] or result.part[i] in result.path[f]
    assert max(result.depth) <= math.log2(len(bags)) + 1
