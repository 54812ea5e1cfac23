"""Chooses a plan for each stage, so that the step of the pipeline is shortest within the memory of each rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec

from .order import PipelineOrder
from .rank_memory import rank_peak
from .stage_use import StageUse
from .step_time import PipelineGraph, StageTimes

_EXHAUSTIVE = 2000  # combinations of ranks to try; beyond that, one rank after the other is improved


class Choice(msgspec.Struct, frozen=True):
    """A plan for each stage.

    Attributes:
        plans: By stage, the index of its plan.
        time: ns of the step.
    """

    plans: Mapping[int, int]
    time: int


def choose(order: PipelineOrder, plans: Sequence[Sequence[StageUse]], budget: int) -> Choice | int:
    """Return the plans with the shortest step; the rank that does not fit, if there are none.

    Ranks share no memory, so each has a list of combinations of its own. Only those are kept that no other combination
    of the rank beats in all times.

    Args:
        order: The actions.
        plans: By stage, the known plans.
        budget: Bytes of each rank.
    """
    graph = PipelineGraph(order)
    by_rank: list[list[dict[int, int]]] = []
    for rank in range(len(order.ranks)):
        combinations = _fitting(order, rank, plans, budget)
        if not combinations:
            return rank
        by_rank.append(_fastest(combinations, plans))

    def timed(picks: Sequence[Mapping[int, int]]) -> Choice:
        merged = {stage: at for pick in picks for stage, at in pick.items()}
        return Choice(merged, graph.time({stage: StageTimes.of(plans[stage][at]) for stage, at in merged.items()}))

    if math.prod(map(len, by_rank)) <= _EXHAUSTIVE:
        return min(map(timed, itertools.product(*by_rank)), key=lambda choice: choice.time)
    picks = [rows[0] for rows in by_rank]
    best = timed(picks)
    while True:
        for rank, rows in enumerate(by_rank):
            picks[rank] = min(rows, key=lambda row: timed([*picks[:rank], row, *picks[rank + 1 :]]).time)
        improved = timed(picks)
        if improved.time >= best.time:
            return best
        best = improved


def least_peak(order: PipelineOrder, rank: int, plans: Sequence[Sequence[StageUse]]) -> int:
    """Return the smallest peak of a rank with these plans."""
    stages = order.stages_of(rank)
    rows = itertools.product(*(range(len(plans[stage])) for stage in stages))
    return min(rank_peak(order, rank, _uses(dict(zip(stages, row, strict=True)), plans)).peak for row in rows)


def _fitting(order: PipelineOrder, rank: int, plans: Sequence[Sequence[StageUse]], budget: int) -> list[dict[int, int]]:
    stages = order.stages_of(rank)
    rows = itertools.product(*(range(len(plans[stage])) for stage in stages))
    picks = (dict(zip(stages, row, strict=True)) for row in rows)
    return [pick for pick in picks if rank_peak(order, rank, _uses(pick, plans)).peak <= budget]


def _fastest(combinations: list[dict[int, int]], plans: Sequence[Sequence[StageUse]]) -> list[dict[int, int]]:
    """Return the combinations that no other one beats in all times, the one with the least sum first."""

    def times(pick: Mapping[int, int]) -> tuple[int, ...]:
        return tuple(t for stage, at in pick.items() for t in (plans[stage][at].forward, plans[stage][at].backward))

    kept: list[dict[int, int]] = []
    for pick in sorted(combinations, key=lambda pick: sum(times(pick))):
        if not any(all(a <= b for a, b in zip(times(other), times(pick), strict=True)) for other in kept):
            kept.append(pick)
    return kept


def _uses(pick: Mapping[int, int], plans: Sequence[Sequence[StageUse]]) -> dict[int, StageUse]:
    return {stage: plans[stage][at] for stage, at in pick.items()}
