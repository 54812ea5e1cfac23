"""Segments of the forward between small cuts, and the stages of the backward that belong to them.

A cut after forward position i carries the storages computed up to i that the forward still reads after i. Good
boundaries carry few new bytes. Dynamic programming over the cuts finds them, so models with and without modules are
treated alike.
"""

from __future__ import annotations

import msgspec

from .problem import Problem


class Segments(msgspec.Struct, frozen=True):
    """A division of a step.

    Attributes:
        ends: Last forward position of each segment, ascending.
        of: Segment by forward position.
        stage: Stage by index of backward operation, from the boundary. Stage k is the backward of segment len(ends) - 1
            - k.
        boundary: Storages that a chosen cut carries.
    """

    ends: tuple[int, ...]
    of: tuple[int, ...]
    stage: tuple[int, ...]
    boundary: frozenset[int]


def segments(problem: Problem, length: int) -> Segments:
    """Cut the forward into segments of about `length` operations, at the cuts that carry the fewest new bytes."""
    ends = _choose(problem, max(2, length))
    of: list[int] = []
    for number, end in enumerate(ends):
        of.extend([number] * (end + 1 - len(of)))
    boundary = frozenset(
        s
        for s in problem.storages
        if of[problem.producer[s]] < of[min(problem.last_forward_read(s), problem.backward_start - 1)]
    )
    return Segments(tuple(ends), tuple(of), _stages(problem, of, boundary, len(ends)), boundary)


def segment_length(problem: Problem, most: int, parts: int) -> int:
    """Return the number of operations in a segment: at most `most`, and such that a small step has about `parts`
    segments."""
    return max(2, min(most, -(-len(problem.forward) // parts)))


def _choose(problem: Problem, length: int) -> list[int]:
    """Return ends of the segments: least carried bytes plus a penalty for segments far from `length`."""
    positions = problem.forward
    if not positions:
        return [problem.backward_start - 1] if problem.backward_start else []
    n = len(positions)
    rank = {p: r for r, p in enumerate(positions)}
    written = [[s for s in problem.writes[p] if s not in problem.pinned] for p in positions]
    last = [[_rank_of_last(problem, s, rank) for s in group] for group in written]
    mean = sum(problem.size[s] for group in written for s in group) / max(1, n)
    longest = 3 * length
    best = [0.0] + [float("inf")] * n  # by number of operations before the cut
    back = [0] * (n + 1)
    for end in range(1, n + 1):
        carried = 0
        for begin in range(end - 1, max(-1, end - 1 - longest), -1):
            if end < n:
                carried += sum(problem.size[s] for s, z in zip(written[begin], last[begin], strict=True) if z >= end)
            stretch = (end - begin) / length - 1
            cost = best[begin] + carried / max(mean, 1.0) + stretch * stretch
            if cost < best[end]:
                best[end], back[end] = cost, begin
    ends: list[int] = []
    at = n
    while at > 0:
        ends.append(problem.backward_start - 1 if at == n else positions[at] - 1)
        at = back[at]
    return ends[::-1]


def _rank_of_last(problem: Problem, s: int, rank: dict[int, int]) -> int:
    inside = [i for i in problem.readers[s] if i < problem.backward_start]
    return rank[inside[-1]] if inside else -1


def _stages(problem: Problem, of: list[int], boundary: frozenset[int], count: int) -> tuple[int, ...]:
    """Return the stage of every backward operation. A stage begins when nothing inside later segments is read any
    more."""
    top = [-1] * (len(problem.real) - problem.backward_start)
    for i in problem.backward:
        local = (problem.producer[s] for s in problem.reads[i] if s not in boundary)
        top[i - problem.backward_start] = max((of[f] for f in local if 0 <= f < problem.backward_start), default=-1)
    highest = -1
    stages = [0] * len(top)
    for at in range(len(top) - 1, -1, -1):
        highest = max(highest, top[at])
        stages[at] = count - 1 - max(highest, 0)
    return tuple(stages)


def shut_stages(problem: Problem, split: Segments) -> tuple[int, ...]:
    """Return the stages of `Segments`: in a segment's stage, nothing is read that a later segment keeps to itself."""
    return split.stage


def aligned_stages(problem: Problem, split: Segments) -> tuple[int, ...]:
    """Return stages of the backward in which most operations are in the stage of the last segment whose storages they
    read.

    In the stages of `Segments`, no storage that a segment keeps to itself is read later. In a net whose values reach
    far, that may put nearly all operations into the first stage.
    """
    backward_start, count = problem.backward_start, len(split.ends)
    reads = [
        max((split.of[problem.producer[s]] for s in read if problem.producer[s] < backward_start), default=-1)
        for read in problem.reads[backward_start:]
    ]
    begins = [0] * count  # of the stage of each segment; those of later ones come first
    for k in range(count - 2, -1, -1):
        wrong = best = sum(last > k for last in reads)
        for i, last in enumerate(reads):
            wrong += 0 if last < 0 else -1 if last > k else 1
            if wrong < best:
                best, begins[k] = wrong, i + 1
        begins[k] = max(begins[k], begins[k + 1])
    return tuple(count - 1 - min(k for k in range(count) if begins[k] <= i) for i in range(len(reads)))
