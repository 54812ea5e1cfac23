"""Rotor on a training step: its chain, and from the sequence of stage runs to reruns of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from remate_runtime.step import FlatRerun

from ..blocks.block_frontier import BlockPlan
from ..bound.floor import proven_floor
from ..milp.budget_search import Candidate, judge
from ..milp.highs import Control
from .chain import Chain
from .rotor import Link, Move, Table, Way

ROUNDS = 6
CLOSE = 0.004  # share of the budget that is not worth another try
ROOM = 1.3  # a table reaches above the budget: what it counts and is not there is made use of

Plans = Mapping[int, Sequence[BlockPlan]]


def rotor(chain: Chain, budget: int, control: Control, name: str, plans: Plans | None = None) -> Iterator[Candidate]:
    """Schedules for a budget as the simulator judges them, and, where none fits, the one of least memory. plans: by
    stage, plans to choose from beside keeping everything (over the operations of the stage)."""
    offered = [_offered(chain, k, plans or {}) for k in range(len(chain.stages))]
    links = [_link(chain, k, offered[k]) for k in range(len(chain.stages))]
    table = Table(links, max(1, int(min(budget * ROOM, max(chain.baseline * 1.05, budget)))))
    target, fitted = float(budget), False
    for _ in range(ROUNDS):
        moves = table.moves(target)
        if moves is None or control.stopped():
            break
        found = judge(chain.problem, reruns(chain, moves, offered), name)
        yield found
        slack = budget - found.peak
        if fitted and slack >= 0:
            break
        fitted = fitted or slack >= 0
        if 0 <= slack <= CLOSE * budget:
            break
        target += slack - (0.0005 * budget if slack < 0 else 0)
    if not fitted:
        yield from _least(chain, links, offered, budget, name)


def _least(
    chain: Chain, links: list[Link], offered: list[list[BlockPlan]], budget: int, name: str
) -> Iterator[Candidate]:
    """The schedule of least memory: of a fine table if that reaches, else of one that reaches as far as keep-all."""
    for limit in (max(budget, 2 * proven_floor(chain.problem)), chain.baseline + 1):
        table = Table(links, int(limit))
        least = table.smallest()
        moves = None if least is None else table.moves(least + table.unit)
        if moves is not None:
            yield judge(chain.problem, reruns(chain, moves, offered), name)
            return


def reruns(chain: Chain, moves: Sequence[Move], offered: Sequence[Sequence[BlockPlan]]) -> list[FlatRerun]:
    """Every run of a stage after its first becomes reruns of those of its operations that are needed."""
    made: list[FlatRerun] = []
    waiting: list[int] = []
    ran: set[int] = set()
    turn = chain.problem.backward_start
    for n, move in enumerate(moves):
        k, stage = move.stage, chain.stages[move.stage]
        if move.kind == "back":
            first, end = stage.backward
            if first == end:
                continue  # what waits is for a stage below
            made += [FlatRerun(f, first) for f in waiting]
            waiting.clear()
            made += [_mapped(stage.forward[0], first, turn, chain, k, r) for r in offered[k][move.way].reruns]
        elif k not in ran:
            ran.add(k)
        elif move.kind == "again":
            waiting += stage.makes
        else:
            further = n + 1 < len(moves) and moves[n + 1].stage == k + 1
            waiting += sorted({*stage.needs, *stage.makes}) if further else stage.needs
    return sorted(made, key=lambda r: r.before)  # stable


def _mapped(begin: int, first: int, turn: int, chain: Chain, k: int, rerun: FlatRerun) -> FlatRerun:
    """A rerun of a plan of stage k over the whole step."""
    local = chain.leaf[k].graph.backward_start
    before = first + rerun.before - local if rerun.before >= local else begin + rerun.before
    return FlatRerun(begin + rerun.op, before)


def _offered(chain: Chain, k: int, plans: Plans) -> list[BlockPlan]:
    return [chain.keep[k], *(plan for plan in plans.get(k, ()) if plan.reruns)]


def _link(chain: Chain, k: int, offered: Sequence[BlockPlan]) -> Link:
    problem, stage, keep = chain.problem, chain.stages[k], chain.keep[k]

    def time(operations: Sequence[int]) -> int:
        return sum(problem.time[f] for f in operations)

    beside = chain.in_backward[k]
    ways = tuple(
        Way(chain.retained(k, plan), plan.forward_peak, beside + plan.backward_peak, plan.time - keep.time)
        for plan in offered
    )
    every = sorted({*stage.needs, *stage.makes})
    return Link(
        stage.carried,
        chain.drop[k].forward_peak,
        chain.before_backward[k],
        time(stage.makes),
        time(every),
        time(stage.needs),
        ways,
    )
