"""Where a rerun may stand, when its outputs may be needed, and the memory rows that follow.

Backward is split into stages. A forward operation f may run again in its allowed stages, at most once in each, at a
*slot*: just before its first possible need there. Slots and executed operations are *positions*, in step order. A
storage that something in stage k may need is either *held* when that stage begins or made again in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import msgspec

from ..account import backward_holdings
from ..problem import Problem

Key = tuple[str, int, int]  # ("hold", storage, stage) or ("rerun", operation, stage)


class RerunWindows(msgspec.Struct, frozen=True):
    """slots: (operation, stage, anchor) of possible reruns in step order, anchor the backward operation that it stands
    before. position: of each slot, by (operation, stage). at: position of every executed operation. need: by (storage,
    stage), last position where it may be needed. stages: by storage, the stages in which it may be needed, ascending.
    read: (storage, stage) pairs that a backward operation reads. stage: by backward operation index minus turn."""

    slots: tuple[tuple[int, int, int], ...]
    position: dict[tuple[int, int], int]
    at: dict[int, int]
    count: int
    need: dict[tuple[int, int], int]
    stages: dict[int, tuple[int, ...]]
    read: frozenset[tuple[int, int]]
    stage: tuple[int, ...]


def rerun_windows(problem: Problem, stage: Sequence[int], allowed: Mapping[int, Set[int]]) -> RerunWindows:
    """stage: by backward operation index minus turn. allowed: by forward operation, stages in which it may rerun."""
    turn = problem.backward_start
    by_stage: dict[int, list[int]] = defaultdict(list)
    candidates: dict[int, list[int]] = defaultdict(list)
    for i in problem.backward:
        by_stage[stage[i - turn]].append(i)
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
        first = _anchors(problem, k, by_stage[k], candidates[k])
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
                if problem.producer[s] < turn:
                    need[s, k] = count
                    read.add((s, k))
            count += 1
    needed: dict[int, list[int]] = defaultdict(list)
    for s, k in need:
        needed[s].append(k)
    stages = {s: tuple(sorted(ks)) for s, ks in needed.items()}
    return RerunWindows(tuple(slots), position, at, count, need, stages, frozenset(read), tuple(stage))


def _anchors(problem: Problem, k: int, backward: list[int], candidates: list[int]) -> dict[int, int]:
    """For each candidate that something in the stage may need: the operation before which that need first arises."""
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
    """A memory row: base bytes plus the change of the coefficients since the previous row."""

    position: int
    base: int
    change: tuple[tuple[Key, int], ...]


def rows(problem: Problem, windows: RerunWindows) -> list[Row]:
    """Memory at every position, as changes; rows that another row implies are left out."""
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


def _pieces(problem: Problem, windows: RerunWindows) -> tuple[list[int], list[list[tuple[Key, int, int]]]]:
    """Changes of the fixed bytes, and of the coefficients as (variable, bytes, sign of the change of memory): where a
    storage goes over from `held or made again` to `held for a later stage`, memory cannot rise."""
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
            change[p].append((("rerun", f, k), extra, 1))
            change[p + 1].append((("rerun", f, k), -extra, -1))
    return base, change


def _fixed_end(problem: Problem, windows: RerunWindows, s: int) -> int:
    """Last position at which forward storage s, from its first run, is live whatever the plan; of an output of the model,
    in the forward."""
    if s in problem.returned:
        return len(problem.forward) - 1
    if s in problem.gradients:
        return windows.count - 1
    last = problem.last_forward_read(s)
    stop = windows.at.get(last, len(problem.forward) - 1)
    return max(stop - 1, windows.at[problem.producer[s]]) if problem.overwrites[last] == s else stop


def _retained(
    problem: Problem, windows: RerunWindows, s: int, stop: int, change: list[list[tuple[Key, int, int]]]
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
            change[slot].append((("rerun", f, k), size, 1))
            change[last + 1].append((("rerun", f, k), -size, -1))
        change[last + 1].append((("hold", s, k), -size, -1))
        if follower is not None:
            change[last + 1].append((("hold", s, follower), size, -1))
