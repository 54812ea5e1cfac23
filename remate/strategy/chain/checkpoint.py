"""Checkpointing of whole segments: keep the inputs of a segment, and run it again just before its backward.

`checkpoint-blocks` chooses segments as `torch.utils.checkpoint` is mostly used. `chen-sqrt` divides the step into
segments of about equal bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from remate_runtime.flat_step import FlatRecompute

from ...partition.hierarchy import BlockSpan
from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .chain import Chain, chains_of, closure

COUNTS = 32  # numbers of segments that are tried

Segment = tuple[tuple[int, int], tuple[int, int]]  # ranges of forward and backward operations


def checkpoint_blocks(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Checkpoint the fewest first blocks that fit the budget, or all of them if none fits.

    Source:
        `torch.utils.checkpoint`, as it is mostly used.
    From the paper:
        Each repeated block of the model is a segment that runs again as a whole.
    Differences:
        The number of segments is the least that fits the budget, because users would search for it by hand.
    """
    problem, segments = instance.problem, repeated_segments(instance.blocks)
    low, high = 0, len(segments)  # invariant: `high` blocks are the answer unless fewer fit
    while low < high and not context.deadline.stopped():
        middle = (low + high) // 2
        candidate = yield Proposal(segment_recomputes(problem, segments[:middle]))
        if candidate.peak <= request.budget:
            high = middle
        else:
            low = middle + 1
    yield Proposal(segment_recomputes(problem, segments[:high]))


def chen(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Divide the step into segments that retain about equal bytes, in several numbers of segments; the last segment is
    kept.

    Source:
        T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", arXiv:1604.06174, 2016.
    From the paper:
        Algorithm 3: segments of about equal bytes; the square root of the number of layers is among the numbers of
            segments.
    Differences:
        Several numbers of segments are tried, because the budget is given and not the number. Values that other
        segments read are kept.
    """
    for chain in chains_of(instance):
        yield from _of_equal_bytes(chain, context)


def _of_equal_bytes(chain: Chain, context: Context) -> Proposals[None]:
    stages = chain.stages
    sizes = [chain.retained(k, chain.keep[k]) for k in range(len(stages))]
    total = sum(sizes)
    seen: set[tuple[int, ...]] = set()
    for count in _counts(len(stages)):
        starts, filled = [0], 0
        for k, size in enumerate(sizes):  # a new segment where the bytes so far reach the next equal share
            if filled >= total * len(starts) / count and k > starts[-1]:
                starts.append(k)
            filled += size
        if tuple(starts) in seen or context.deadline.stopped():
            continue
        seen.add(tuple(starts))
        ends = [*starts[1:], len(stages)]
        segments = [
            ((stages[a].forward[0], stages[b - 1].forward[1]), (stages[b - 1].backward[0], stages[a].backward[1]))
            for a, b in zip(starts, ends, strict=True)
        ]
        yield Proposal(segment_recomputes(chain.problem, segments[:-1]))


def _counts(stages: int) -> list[int]:
    """Return numbers of segments: about evenly from two to all, with the square root of the number of stages."""
    even = {2 + round(n * (stages - 2) / (COUNTS - 1)) for n in range(COUNTS)}
    return sorted(count for count in {*even, round(stages**0.5)} if 2 <= count <= stages)


def segment_recomputes(
    problem: Problem, segments: Sequence[Segment], saved: frozenset[int] = frozenset()
) -> tuple[FlatRecompute, ...]:
    """Return recomputations of each segment just before its backward.

    Values that other segments read are kept, and the storages `saved`.
    """
    recomputes: list[FlatRecompute] = []
    for (begin, end), (first, stop) in segments:
        if first == stop:
            continue
        recomputes += [
            FlatRecompute(f, first) for f in closure(problem, *_own(problem, begin, end, first, stop, saved))
        ]
    return tuple(sorted(recomputes, key=lambda r: r.before))


def _own(
    problem: Problem, begin: int, end: int, first: int, stop: int, saved: frozenset[int]
) -> tuple[list[int], int, frozenset[int]]:
    inside = [s for f in range(begin, end) if problem.real[f] for s in problem.writes[f]]
    elsewhere = frozenset(
        s
        for s in inside
        if s in problem.returned or any(not begin <= i < end and not first <= i < stop for i in problem.readers[s])
    )
    read = sorted({s for i in range(first, stop) for s in problem.reads[i] if begin <= problem.producer[s] < end})
    return read, begin, saved | elsewhere


def repeated_segments(parts: Sequence[BlockSpan]) -> list[Segment]:
    """Return the outermost parts whose label occurs more than once, or the leaves if there are none."""
    count = Counter(_labels(parts))
    blocks = list(_repeated(parts, count)) or [leaf for part in parts for leaf in part.leaves()]
    return [(part.forward, part.backward) for part in blocks]


def _labels(parts: Sequence[BlockSpan]) -> Iterator[str]:
    for part in parts:
        yield part.label
        yield from _labels(part.parts)


def _repeated(parts: Sequence[BlockSpan], count: Counter[str]) -> Iterator[BlockSpan]:
    for part in parts:
        if count[part.label] > 1:
            yield part
        else:
            yield from _repeated(part.parts, count)


CHECKPOINT_BLOCKS = Strategy(
    "checkpoint-blocks",
    "repeated blocks run again as a whole, as few as fit the budget",
    checkpoint_blocks,
    reference="torch.utils.checkpoint, as it is mostly used",
    needs=frozenset({"backward", "hierarchy"}),
)
CHEN = Strategy(
    "chen-sqrt",
    "segments that retain about equal bytes run again, in a number that the budget chooses",
    chen,
    reference="T. Chen et al., Training deep nets with sublinear memory cost, arXiv:1604.06174, 2016",
    needs=frozenset({"backward", "chain"}),
)
