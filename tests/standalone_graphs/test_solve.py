"""Bare instances: what is solved is legal, within the budget, true to the definition, and the fastest where that is
known."""

from __future__ import annotations

import msgspec
import pytest

import remate
from remate.errors import InfeasibleError, InstanceError
from remate.standalone_graphs import BareInstance, check_sequence, verify
from remate.standalone_graphs.graph import bare_step
from remate.strategy import StepInstance

from .dags import fastest, random_dag


@pytest.mark.parametrize("seed", range(24))
def test_baselines_agree_with_the_definition(seed: int) -> None:
    """The simulator, of the whole as a forward and split at the forward/backward boundary, and the definition."""
    bare = random_dag(seed, 14)
    step = bare_step(bare)
    taken = check_sequence(bare, bare.order)
    for instance in (step.whole, step.split):
        if isinstance(instance, StepInstance):
            assert (instance.baseline.peak, instance.baseline.time) == (taken.peak, taken.time)


@pytest.mark.quick("8", "6", "5")
@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 18))])
def test_the_fastest_of_a_tiny_instance_is_found_and_proven(seed: int) -> None:
    bare = random_dag(seed, 8)
    peak = check_sequence(bare, bare.order).peak
    for share in (0.9, 0.75, 0.6):
        budget = int(share * peak)
        best = fastest(bare, budget)
        if best is None:
            with pytest.raises(InfeasibleError) as caught:
                remate.solve(bare, budget, keep_order=True)
            assert fastest(bare, caught.value.smallest) is not None
            continue
        solution = remate.solve(bare, budget, keep_order=True)
        assert (solution.time, solution.stopped_by) == (best, "optimal")
        assert solution.lower_bound == best


def test_a_result_that_lies_is_refused() -> None:
    bare = random_dag(3, 12)
    solution = remate.solve(bare, "80%", "greedy")
    verify(bare, solution)
    change = msgspec.structs.replace
    swapped = (solution.sequence[1], solution.sequence[0], *solution.sequence[2:])
    for lie, word in (
        (change(solution, peak=solution.peak - 1), "peak, time"),
        (change(solution, time=solution.time - 1), "peak, time"),
        (change(solution, budget=solution.peak - 1), "over the budget"),
        (change(solution, lower_bound=solution.time + 1), "the bound"),
        (change(solution, digest="0" * 64), "another instance"),
        (change(solution, sequence=solution.sequence[:-1]), "never runs"),
        (change(solution, sequence=(*solution.sequence, "other")), "is not a node"),
        (change(solution, sequence=swapped), "before it is produced"),
    ):
        with pytest.raises(InstanceError, match=word):
            verify(bare, lie)
    once = change(bare, nodes=tuple(change(node, recomputable=False) for node in bare.nodes))
    with pytest.raises(InstanceError, match="is not recomputable"):
        check_sequence(once, (*bare.order, bare.order[0]))


def test_memory_by_hand() -> None:
    """a 10 -> b 20 -> c 5, which reads both; a is dropped after b and made again: 10, 30, 20+10, 20+10+5."""
    tree = {
        "nodes": [{"id": k, "time": 1, "bytes": b} for k, b in (("a", 10), ("b", 20), ("d", 7), ("c", 5))],
        "links": [{"source": s, "target": t} for s, t in (("a", "b"), ("b", "d"), ("a", "c"), ("d", "c"))],
    }
    bare = remate.standalone_graphs.readers.from_tree(tree)  # type: ignore[attr-defined]
    assert check_sequence(bare, ["a", "b", "d", "c"]) == (37, 4, ("a", "b", "d", "c"), 0)
    assert check_sequence(bare, ["a", "b", "d", "a", "c"]) == (30, 5, ("a", "b", "d", "c"), 1)
    pinned: BareInstance = msgspec.structs.replace(bare, pins=("b",))
    assert check_sequence(pinned, ["a", "b", "d", "a", "c"]).peak == 42
