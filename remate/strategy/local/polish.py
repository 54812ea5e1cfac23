"""Local improvement of a schedule: drop recomputations that memory permits, and run the others as late as possible.

The result is never worse than the input, because the simulator confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from remate_runtime.flat_step import FlatRecompute

from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..instance import StepInstance
from ..pool import better
from ..problem import Problem
from .ledger import Ledger

ROUNDS = 8
ROUND = 40  # visits of an execution in a round

# By recomputation: lives of storages before it, and the lives that it begins.
Lives = Mapping[int, Sequence[tuple[int, int]]]
# Returns the gain of dropping each recomputation.
Worth = Callable[[Problem, Ledger, Lives], list[float]]


def polish(
    problem: Problem, given: Candidate, budget: int, deadline: Deadline, start: Candidate | None = None
) -> Proposals[Candidate]:
    """Propose faster or smaller variants of a schedule that fit, and return the best.

    Args:
        problem: The step.
        given: The schedule.
        budget: Bytes.
        deadline: Ends the search early.
        start: The candidate that `given` improves on, if another strategy proposed that.
    """
    best = given
    moved = as_late_as_possible(problem, best.recomputes)
    if moved != list(best.recomputes):
        late = yield Proposal(tuple(moved), start)
        if late.peak <= max(best.peak, budget) and late.time <= best.time:
            best = late
    polished = best
    for orders in ((longest, _densest), (_densest, longest)):
        recomputes = best.recomputes
        for worth in orders:
            recomputes = trimmed(problem, recomputes, budget, deadline, worth)
        if recomputes != best.recomputes:
            tried = yield Proposal(recomputes, start)
            if tried.peak <= budget:
                polished = better(polished, tried) or polished
    return polished


def trimmed(
    problem: Problem, recomputes: tuple[FlatRecompute, ...], budget: int, deadline: Deadline, worth: Worth
) -> tuple[FlatRecompute, ...]:
    """Drop recomputations in order of their worth, as long as the ledger says that the rest fits.

    Args:
        problem: The step.
        recomputes: A schedule.
        budget: Bytes.
        deadline: Ends it early.
        worth: The order.
    """
    best, most = recomputes, len(recomputes)
    for _ in range(ROUNDS):
        if deadline.stopped():
            break
        deadline.spend(ROUND * (len(problem.real) + len(best)))
        dropped = _drop(problem, best, budget, worth, most)
        if not dropped:
            break
        fewer = pruned(problem, [r for n, r in enumerate(best) if n not in dropped])
        plans = (as_late_as_possible(problem, fewer), fewer)
        fits = next((plan for plan in plans if Ledger(problem, plan).peak <= budget), None)
        if fits is not None:
            best = tuple(fits)
        elif len(dropped) == 1:
            break
        else:
            most = max(1, len(dropped) // 4)  # more memory than `_drop` expected: drop only the best few
    return best


def polish_best(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Polish the best known schedule.

    Source:
        No paper.
    From the paper:
        Nothing.
    Differences:
        None.
    """
    if context.best is not None:
        order = context.best.order
        problem = instance.problem if order is None else instance.ordered(order).problem
        yield from polish(problem, context.best, request.budget, context.deadline, start=context.best)


def _drop(problem: Problem, recomputes: Sequence[FlatRecompute], budget: int, worth: Worth, most: int) -> set[int]:
    """Return up to `most` recomputations that can be dropped together, the most valuable first.

    Their results must fit in memory until they are read.
    """
    ledger = Ledger(problem, recomputes)
    live, wanted = ledger.live.copy(), ledger.wanted
    lives: dict[int, list[tuple[int, int]]] = {}
    for n, old, new in ledger.remade():
        if wanted[new]:
            lives.setdefault(n, []).append((old, new))
    dropped: set[int] = set()
    touched: set[int] = set()
    value = worth(problem, ledger, lives)
    for n in sorted(range(len(recomputes)), key=lambda n: (-value[n], n)):
        needed = [
            (int(ledger.storage[old]), int(ledger.death[old]) + 1, int(ledger.birth[new]))
            for old, new in lives.get(n, ())
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


def longest(problem: Problem, ledger: Ledger, lives: Lives) -> list[float]:
    """Return ns of each recomputation."""
    return [float(problem.time[recompute.op]) for recompute in ledger.recomputes]


def _densest(problem: Problem, ledger: Ledger, lives: Lives) -> list[float]:
    """Return ns of each recomputation, and of those that run only for it, per byte that must be held instead."""
    gone = [float(problem.time[recompute.op]) for recompute in ledger.recomputes]
    for n, reader in zip(ledger.again, ledger.only_reader().tolist(), strict=True):
        if n >= 0 and reader >= 0 and ledger.again[reader] >= 0:
            gone[ledger.again[reader]] += gone[n]
    storage: list[int] = ledger.storage.tolist()
    held = [sum(problem.size[storage[old]] for old, _ in lives.get(n, ())) for n in range(len(gone))]
    return [time / max(1, nbytes) for time, nbytes in zip(gone, held, strict=True)]


def pruned(problem: Problem, recomputes: Sequence[FlatRecompute]) -> list[FlatRecompute]:
    """Remove recomputations whose results are not read."""
    kept = list(recomputes)
    while True:
        ledger = Ledger(problem, kept)
        remade, wanted = ledger.remade(), ledger.wanted
        dead = {n for n, _, _ in remade} - {n for n, _, new in remade if wanted[new]}
        if not dead:
            return kept
        kept = [r for n, r in enumerate(kept) if n not in dead]


def as_late_as_possible(problem: Problem, recomputes: Sequence[FlatRecompute]) -> list[FlatRecompute]:
    """Move every recomputation to just before the first operation that reads its results."""
    ledger = Ledger(problem, recomputes)
    needs: list[int] = ledger.first_need().tolist()
    anchor: dict[int, int] = {}
    for step in range(len(ledger.order) - 1, -1, -1):
        n = ledger.again[step]
        if n < 0:
            continue
        first = needs[step]
        if first < 0:
            anchor[n] = recomputes[n].before
            continue
        reader = ledger.again[first]
        if first == ledger.backward_start:
            # No recomputation is possible between the last operation of the forward and the boundary.
            anchor[n] = problem.backward_start - 1
        else:
            anchor[n] = ledger.order[first] if reader < 0 else anchor[reader]
    place = {n: step for step, n in enumerate(ledger.again)}
    moved = [(anchor[n], n) for n in range(len(recomputes))]
    return [FlatRecompute(recomputes[n].op, before) for before, n in sorted(moved, key=lambda m: (m[0], place[m[1]]))]


POLISH = Strategy(
    "polish", "drop recomputations of the best schedule that memory permits, run the others later", polish_best
)
