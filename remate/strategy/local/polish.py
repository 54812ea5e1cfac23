"""Local improvement of a schedule: drop reruns that the slack permits, and run the others as late as they can.

Never worse than its input: everything is confirmed by the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.step import FlatRerun

from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..instance import Instance
from ..pool import better
from ..problem import Problem
from .ledger import Ledger

ROUNDS = 8


def polish(
    problem: Problem, given: Candidate, budget: int, deadline: Deadline, start: Candidate | None = None
) -> Proposals[Candidate]:
    """The same schedule, or a faster or smaller one that still fits. start: whose `given` is, if another strategy's."""
    best = given
    moved = as_late_as_possible(problem, best.reruns)
    if moved != list(best.reruns):
        late = yield Proposal(tuple(moved), start)
        if late.peak <= max(best.peak, budget) and late.time <= best.time:
            best = late
    share = 1.0
    for _ in range(ROUNDS):
        if deadline.stopped():
            break
        dropped = _drop(problem, best, budget, share)
        if not dropped:
            break
        fewer = pruned(problem, [r for n, r in enumerate(best.reruns) if n not in dropped])
        moved = as_late_as_possible(problem, fewer)
        fits = Ledger(problem, moved).peak <= budget  # quicker than the simulator, which has the last word
        tried = (yield Proposal(tuple(moved), start)) if fits else None
        if tried is not None and tried.peak <= budget and tried.time < best.time:
            best = better(best, tried) or best
        elif len(dropped) == 1:
            break
        else:
            share /= 4  # the ledger was too hopeful: take only the best few
    return best


def polish_best(instance: Instance, request: Request, context: Context) -> Proposals[None]:
    """The best schedule known, polished."""
    if context.best is not None:
        order = context.best.order
        problem = instance.problem if order is None else instance.ordered(order).problem
        yield from polish(problem, context.best, request.budget, context.deadline, start=context.best)


def _drop(problem: Problem, given: Candidate, budget: int, share: float) -> set[int]:
    """Reruns that can go together, the longest first: what they make again must fit in memory meanwhile."""
    ledger = Ledger(problem, given.reruns)
    live, wanted = ledger.live.copy(), ledger.wanted
    made: dict[int, list[tuple[int, int]]] = {}
    for n, old, new in ledger.remade():
        if wanted[new]:
            made.setdefault(n, []).append((old, new))
    dropped: set[int] = set()
    touched: set[int] = set()
    order = sorted(range(len(given.reruns)), key=lambda n: (-problem.time[given.reruns[n].op], n))
    most = max(1, int(share * len(order)))
    for n in order:
        needed = [
            (int(ledger.storage[old]), int(ledger.death[old]) + 1, int(ledger.birth[new]))
            for old, new in made.get(n, ())
        ]
        if any(storage in touched for storage, _, _ in needed):
            continue
        trial = live.copy() if len(needed) > 1 else live
        spans: list[tuple[int, int, int]] = []
        fits = True
        for storage, begin, end in needed:
            size = problem.size[storage]
            if begin < end and int(trial[begin:end].max()) + size > budget:
                fits = False
                break
            spans.append((begin, end, size))
            if trial is not live:
                trial[begin:end] += size
        if fits:
            for begin, end, size in spans:
                live[begin:end] += size
            touched.update(storage for storage, _, _ in needed)
            dropped.add(n)
            if len(dropped) >= most:
                break
    return dropped


def pruned(problem: Problem, reruns: Sequence[FlatRerun]) -> list[FlatRerun]:
    """Without the reruns whose outputs nothing reads any more."""
    kept = list(reruns)
    while True:
        ledger = Ledger(problem, kept)
        made, wanted = ledger.remade(), ledger.wanted
        dead = {n for n, _, _ in made} - {n for n, _, new in made if wanted[new]}
        if not dead:
            return kept
        kept = [r for n, r in enumerate(kept) if n not in dead]


def as_late_as_possible(problem: Problem, reruns: Sequence[FlatRerun]) -> list[FlatRerun]:
    """Every rerun just before the first operation that reads what it makes."""
    ledger = Ledger(problem, reruns)
    needs = ledger.first_need().tolist()
    anchor: dict[int, int] = {}
    for step in range(len(ledger.order) - 1, -1, -1):
        n = ledger.again[step]
        if n < 0:
            continue
        first = needs[step]
        if first < 0:
            anchor[n] = reruns[n].before
            continue
        reader = ledger.again[first]
        if first == ledger.turn:  # nothing reruns between the last operation of the forward and the turn
            anchor[n] = problem.backward_start - 1
        else:
            anchor[n] = ledger.order[first] if reader < 0 else anchor[reader]
    place = {n: step for step, n in enumerate(ledger.again)}
    moved = [(anchor[n], n) for n in range(len(reruns))]
    return [FlatRerun(reruns[n].op, before) for before, n in sorted(moved, key=lambda m: (m[0], place[m[1]]))]


POLISH = Strategy("polish", "drop reruns of the best schedule that memory permits, run the others later", polish_best)
