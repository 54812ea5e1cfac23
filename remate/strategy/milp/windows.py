"""Where recomputations may take place, when their outputs may be needed, and the memory rows that follow.

Backward is divided into stages. A forward operation f may run again in its allowed stages, at most once in each, at a
*slot*: just before its first possible need there. Slots and executed operations are *positions*, in step order. A
storage that an operation of stage k may need is either *held* when that stage begins or computed again in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import msgspec

from ..account import backward_holdings
from ..problem import Problem

Key = tuple[str, int, int]  # ("hold", storage, stage), ("recompute", operation, stage)


class RecomputeWindows(msgspec.Struct, frozen=True):
    """Where operations may run again.

    Attributes:
        slots: (operation, stage, anchor) of possible recomputations in step order. A recomputation takes place before
            the backward operation `anchor`.
        position: Position of each slot, by (operation, stage).
        at: Position of every executed operation.
        count: Number of positions.
        need: By (storage, stage), the last position where the storage may be needed.
        stages: By storage, the stages in which it may be needed, ascending.
        read: (storage, stage) pairs that a backward operation reads.
        stage: By index of backward operation, from the boundary.
    """

    slots: tuple[tuple[int, int, int], ...]
    position: dict[tuple[int, int], int]
    at: dict[int, int]
    count: int
    need: dict[tuple[int, int], int]
    stages: dict[int, tuple[int, ...]]
    read: frozenset[tuple[int, int]]
    stage: tuple[int, ...]


def recompute_windows(problem: Problem, stage: Sequence[int], allowed: Mapping[int, Set[int]]) -> RecomputeWindows:
    """Return windows from allowed recomputations.

    Args:
        problem: The step.
        stage: By index of backward operation, from the boundary.
        allowed: By forward operation, stages in which it may be recomputed.
    """
    backward_start = problem.backward_start
    by_stage: dict[int, list[int]] = defaultdict(list)
    candidates: dict[int, list[int]] = defaultdict(list)
    for i in problem.backward:
        by_stage[stage[i - backward_start]].append(i)
    for f in sorted(allowed):
        for k in allowed[f]:
            candidates[k].append(f)
    position: dict[tuple[int, int], int] = {}
    at = {i: n for n, i in enumerate(problem.forward)}
    slots: list[tuple[int, int, int]] = []
    need: dict[tuple[int, int], int] = {}
    read: set[tuple[int, int]] = set()
    count = len(at)
    for k in sorted(by_stage):
        first = _anchors(problem, by_stage[k], candidates[k])
        before: dict[int, list[int]] = defaultdict(list)
        for f in sorted(first):
            before[first[f]].append(f)
        for j in by_stage[k]:
            for f in before[j]:
                slots.append((f, k, j))
                position[f, k] = count
                for s in problem.reads[f]:
                    need[s, k] = count
                count += 1
            at[j] = count
            for s in problem.reads[j]:
                if problem.producer[s] < backward_start:
                    need[s, k] = count
                    read.add((s, k))
            count += 1
    needed: dict[int, list[int]] = defaultdict(list)
    for s, k in need:
        needed[s].append(k)
    stages = {s: tuple(sorted(ks)) for s, ks in needed.items()}
    return RecomputeWindows(tuple(slots), position, at, count, need, stages, frozenset(read), tuple(stage))


def _anchors(problem: Problem, backward: list[int], candidates: list[int]) -> dict[int, int]:
    """Return the operation before which each candidate is first needed in the stage, if it is."""
    inside = set(backward)
    first: dict[int, int] = {}
    for f in reversed(candidates):
        needs = [
            i if i >= problem.backward_start else first[i]
            for s in problem.writes[f]
            if s not in problem.pinned
            for i in problem.readers[s]
            if (i in inside if i >= problem.backward_start else i in first)
        ]
        if needs:
            first[f] = min(needs)
    return first


class Row(msgspec.Struct, frozen=True):
    """A memory row.

    Attributes:
        position: Its position.
        base: Bytes that do not depend on variables.
        change: Changes of coefficients since the previous row.
    """

    position: int
    base: int
    change: tuple[tuple[Key, int], ...]


def rows(problem: Problem, windows: RecomputeWindows) -> list[Row]:
    """Return memory at every position, as changes, without rows that other rows imply."""
    base, change = _pieces(problem, windows)
    kept: list[tuple[int, int, list[tuple[Key, int, int]]]] = []  # position, base, atoms since the previous row
    pending: list[tuple[Key, int, int]] = []
    level = 0
    for p in range(windows.count):
        level += base[p]
        pending += change[p]
        atoms, here = pending, level
        if kept and here <= kept[-1][1] and all(sign <= 0 for _, _, sign in atoms):
            continue
        while kept and here >= kept[-1][1] and all(sign >= 0 for _, _, sign in atoms):
            atoms = kept.pop()[2] + atoms
        kept.append((p, here, atoms))
        pending = []
    return [Row(p, here, _sum(atoms)) for p, here, atoms in kept]


def _sum(atoms: list[tuple[Key, int, int]]) -> tuple[tuple[Key, int], ...]:
    total: dict[Key, int] = {}
    for key, amount, _ in atoms:
        total[key] = total.get(key, 0) + amount
    return tuple((key, amount) for key, amount in total.items() if amount)


def _pieces(problem: Problem, windows: RecomputeWindows) -> tuple[list[int], list[list[tuple[Key, int, int]]]]:
    """Return changes of the fixed bytes, and of coefficients as (variable, bytes, sign of the change of memory).

    Memory cannot rise where a storage changes from `held or computed again` to `held for a later stage`.
    """
    end = windows.count
    base = [0] * (end + 1)
    change: list[list[tuple[Key, int, int]]] = [[] for _ in range(end + 1)]
    for h in backward_holdings(problem):
        base[len(problem.forward) if h.given else windows.at[h.first]] += h.nbytes
        base[windows.at.get(h.last, end - 1) + 1 - h.overwritten] -= h.nbytes
    for i, p in windows.at.items():
        base[p] += problem.workspace[i]
        base[p + 1] -= problem.workspace[i]
    for f in problem.forward:
        for s in problem.writes[f]:
            stop = _fixed_end(problem, windows, s)
            base[windows.at[f]] += problem.size[s]
            base[stop + 1] -= problem.size[s]
            if s not in problem.pinned:
                _retained(problem, windows, s, stop, change)
    for f, k, _ in windows.slots:
        p = windows.position[f, k]
        extra = problem.workspace[f] + problem.state[f]
        extra += sum(problem.size[s] for s in problem.writes[f] if (s, k) not in windows.need or s in problem.pinned)
        if extra:
            change[p].append((("recompute", f, k), extra, 1))
            change[p + 1].append((("recompute", f, k), -extra, -1))
    return base, change


def _fixed_end(problem: Problem, windows: RecomputeWindows, s: int) -> int:
    """Return the last position at which forward storage s is live from its first run in every plan.

    For an output of the model, return the last position of the forward.
    """
    if s in problem.returned:
        return len(problem.forward) - 1
    if s in problem.gradients:
        return windows.count - 1
    last = problem.last_forward_read(s)
    stop = windows.at.get(last, len(problem.forward) - 1)
    return max(stop - 1, windows.at[problem.producer[s]]) if problem.overwrites[last] == s else stop


def _retained(
    problem: Problem, windows: RecomputeWindows, s: int, stop: int, change: list[list[tuple[Key, int, int]]]
) -> None:
    f, size = problem.producer[s], problem.size[s]
    ks = windows.stages.get(s, ())
    if not size or not ks:
        return
    change[stop + 1].append((("hold", s, ks[0]), size, 1))
    for n, k in enumerate(ks):
        slot, last = windows.position.get((f, k)), windows.need[s, k]
        follower = ks[n + 1] if n + 1 < len(ks) else None
        if (
            follower is None
            and problem.overwrites[reader := problem.readers[s][-1]] == s
            and windows.at[reader] == last
        ):
            last -= 1
        if slot is not None:
            change[slot].append((("recompute", f, k), size, 1))
            change[last + 1].append((("recompute", f, k), -size, -1))
        change[last + 1].append((("hold", s, k), -size, -1))
        if follower is not None:
            change[last + 1].append((("hold", s, follower), size, -1))
