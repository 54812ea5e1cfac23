"""A training step as a chain of stages, which is what the classical strategies reason about.

Stages are leaves of the hierarchy; in a step without one, segments between small cuts: fine or coarse, with the
backward divided by either of two rules, for no such chain is the best for every step. Where a value reaches a little
beyond the next leaf (a residual that spans two of them), the leaves between are joined. Values that reach further
(skips of a U-Net, an encoder's output, masks) are kept all the time, and the rest is treated as a chain. What is cheap
to compute from nothing (an embedding, a position bias, a mask) need not take memory where that is scarce, as at the
loss: it is freed after the forward, and computed again by the stages that read it, or once for all of them where it
reaches far. The simulator says how well that describes the step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import Execution, link, simulate

from ...partition.canonical import readers_of
from ...partition.hierarchy import BlockSpan
from ...partition.leaf_graph import leaf_graph
from ..blocks.block_plan import BlockPlan, simulated_plan
from ..instance import StepInstance
from ..problem import Problem
from ..segments import Segments, aligned_stages, segment_length, segments, shut_stages

LENGTH = 32  # operations in a segment of a step without hierarchy, at most
FEW = 16  # segments of a small one, cut coarsely
NEAR = 3  # leaves that a value may reach over and still be a boundary, when leaves are joined
CHEAP = 0.0025  # of the time of the step: to make a value from nothing for as much is cheap
MOST = 120  # stages: the dynamic programme takes their number to the third power

Rule = Callable[[Problem, Segments], tuple[int, ...]]  # how the backward is divided among segments: one of `segments`


class Stage(msgspec.Struct, frozen=True):
    """One stage.

    forward, backward: ranges of operations. makes: operations that compute again, from the boundary before the stage,
    what the next stage reads. needs: those that compute again what its own backward reads. Both may begin with cheap
    operations of earlier stages. carried: bytes that the next stage reads, less those that it computes for itself.
    apart: bytes of its results that are accounted for elsewhere: kept in any case, or computed by the next stage for
    itself.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]
    makes: tuple[int, ...]
    needs: tuple[int, ...]
    carried: int
    apart: int


class Chain:
    """The stages of a step, and the bytes beside those that they retain.

    blocks: where the stages come from. stages: in forward order. keep[s], drop[s]: stage s alone, retaining everything
    and nothing but its outputs. before_backward[s]: bytes in memory when backward of stage s begins, beside those that
    stages up to s retain; in_backward[s]: the same at the worst moment of that backward, beside the stage's own. By the
    simulator, without recomputation. lasting: storages that reach further than the next stage. cheap: what is freed,
    with the operations that compute it.
    """

    def __init__(self, problem: Problem, blocks: Sequence[BlockSpan]) -> None:
        self.problem = problem
        graph = problem.graph
        self.blocks = tuple(blocks)
        parts = _joined(problem, [leaf for part in self.blocks for leaf in part.leaves()])
        of = _stage_of(graph, parts)
        reach = {s: _reach(problem, of, s) for s in problem.storages}
        home = {s: of[problem.producer[s]] for s in problem.storages}
        self.lasting = frozenset(s for s, last in reach.items() if last > home[s] + 1 or s in problem.returned)
        self.cheap = _cheap(problem, [s for s, last in reach.items() if last > home[s]], len(parts))
        self.stages = [self._stage(part, k, reach) for k, part in enumerate(parts)]
        readers = readers_of(graph)
        self.leaf = [leaf_graph(graph, part, readers) for part in parts]
        self.keep = [simulated_plan(leaf, ()) for leaf in self.leaf]
        self.drop = [self._dropped(k) for k in range(len(parts))]
        self._bases(of)

    def retained(self, k: int, plan: BlockPlan) -> int:
        """Bytes that stage k retains under a plan, what is accounted for elsewhere apart."""
        return plan.retained - self.stages[k].apart

    def _stage(self, part: BlockSpan, k: int, reach: dict[int, int]) -> Stage:
        problem, (begin, end) = self.problem, part.forward
        inside = [s for f in range(begin, end) if problem.real[f] for s in problem.writes[f]]
        lasting = self.lasting.intersection(inside)
        handed = [s for s in inside if reach[s] == k + 1 and s not in lasting]
        carried = [s for s in handed if s not in self.cheap]
        read = {s for i in range(*part.backward) for s in problem.reads[i] if begin <= problem.producer[s] < end}
        remade = frozenset(f for s, producers in self.cheap.items() if s not in self.lasting for f in producers)
        kept = lasting.union(carried)
        return Stage(
            part.forward,
            part.backward,
            closure(problem, carried, begin, self.lasting, remade),
            closure(problem, sorted(read.difference(carried)), begin, self.lasting.union(kept), remade),
            sum(problem.size[s] for s in carried),
            sum(problem.size[s] for s in lasting.union(handed).difference(carried)),
        )

    def _dropped(self, k: int) -> BlockPlan:
        leaf, stage = self.leaf[k], self.stages[k]
        first = leaf.graph.backward_start
        if first == len(leaf.graph.operations):
            return self.keep[k]
        needs = [f - stage.forward[0] for f in stage.needs if f >= stage.forward[0]]
        return simulated_plan(leaf, tuple(FlatRecompute(f, first) for f in needs))

    def _bases(self, of: Sequence[int]) -> None:
        linked = link(self.problem.graph)
        timeline = simulate(linked)
        count, backward_start = len(self.stages), self.problem.backward_start
        self.baseline = timeline.peak
        self.before_backward, worst = [0] * count, [0] * count
        begun = [False] * count
        for n, event in enumerate(linked.events):
            if not isinstance(event, Execution) or event.op < backward_start:
                continue
            k = of[event.op]
            if not begun[k]:
                begun[k], self.before_backward[k] = True, timeline.after[n - 1]
            worst[k] = max(worst[k], timeline.during[n])
        below, here, further = self._held(of)
        self.in_backward = [0] * count
        for k in range(count):
            self.in_backward[k] = max(0, worst[k] - below[k] - self.keep[k].backward_peak + further[k])
            self.before_backward[k] = max(0, self.before_backward[k] - below[k] - here[k] + further[k])
        at_backward_start = timeline.after[timeline.backward_start]
        for k in range(count - 1, -1, -1):  # a stage without backward: as the stage after it
            if not begun[k]:
                self.before_backward[k] = self.before_backward[k + 1] if k + 1 < count else at_backward_start

    def _held(self, of: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Bytes by stage k when its backward begins.

        The first two lists: what the stages below k, and k itself, have in memory there if nothing runs again. That
        differs from what they would have alone, for values that only the forward of the next stage reads are freed by
        then. The third: further bytes of lasting values, because they wait for recomputations; less what is freed until
        the backward of the last stage that reads it.
        """
        problem = self.problem
        read = [s for s in problem.storages if problem.readers[s] and s not in problem.returned]
        size = np.array([problem.size[s] for s in read], dtype=np.int64)
        home = np.array([of[problem.producer[s]] for s in read], dtype=np.int64)
        last = np.array([problem.readers[s][-1] for s in read], dtype=np.int64)
        stages = [[of[i] for i in problem.readers[s]] for s in read]
        low, high = (np.array([end(readers) for readers in stages], dtype=np.int64) for end in (min, max))
        lasts = np.array([s in self.lasting for s in read], dtype=bool)
        cheap = np.array([s in self.cheap for s in read], dtype=bool)
        bytes_by_stage: list[tuple[int, int, int]] = []
        for k, stage in enumerate(self.stages):
            alive = last >= stage.backward[0]
            wanted = (low <= k) & ((k <= high) | ~cheap)
            below, here = (int(size[~lasts & alive & which].sum()) for which in (home < k, home == k))
            bytes_by_stage.append((below, here, int((size * lasts * (wanted.astype(np.int64) - alive)).sum())))
        below, here, further = zip(*bytes_by_stage, strict=True) if bytes_by_stage else ((), (), ())
        return list(below), list(here), list(further)


def chain_of(instance: StepInstance) -> Chain:
    """The chain of a step, built once: of its blocks; of a step without any, of coarse segments."""
    return instance.view(_chain, FEW, aligned_stages)


def chains_of(instance: StepInstance) -> tuple[Chain, ...]:
    """All chains of a step, that of `chain_of` first: the chain of its blocks; without blocks, those of all
    segmentations."""
    ways: dict[tuple[BlockSpan, ...], tuple[int, Rule]] = {}
    for parts in (FEW, MOST):
        for rule in (aligned_stages, shut_stages):
            ways.setdefault(instance.view(_blocks, parts, rule), (parts, rule))
    return tuple(instance.view(_chain, parts, rule) for parts, rule in ways.values())


def _chain(instance: StepInstance, parts: int, rule: Rule) -> Chain:
    return Chain(instance.problem, instance.view(_blocks, parts, rule))


def _blocks(instance: StepInstance, parts: int, rule: Rule) -> tuple[BlockSpan, ...]:
    problem = instance.problem
    return instance.blocks or segment_blocks(problem, segment_length(problem, LENGTH, parts), rule)


def segment_blocks(problem: Problem, length: int, rule: Rule = aligned_stages) -> tuple[BlockSpan, ...]:
    """Blocks of a step that has none: segments of about `length` operations of the forward, each with the stage of the
    backward that is its own."""
    split = segments(problem, length)
    stages = rule(problem, split)
    count, backward_start = len(split.ends), problem.backward_start
    spans: list[BlockSpan] = []
    for n, end in enumerate(split.ends):
        stage = count - 1 - n
        first, stop = bisect_left(stages, stage), bisect_right(stages, stage)
        begin = split.ends[n - 1] + 1 if n else 0
        spans.append(
            BlockSpan(
                f"segment.{n}", "", f"segment.{n}", (begin, end + 1), (backward_start + first, backward_start + stop)
            )
        )
    return tuple(spans)


def closure(
    problem: Problem, wanted: Iterable[int], begin: int, kept: frozenset[int], besides: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Operations from `begin` on, and of `besides`, that must run again to have the storages `wanted`, in order;
    storages of `kept` are in memory."""
    needed: set[int] = set()
    left = [s for s in wanted if s not in kept]
    while left:
        f = problem.producer[left.pop()]
        if (f < begin and f not in besides) or f >= problem.backward_start or f in needed:
            continue
        needed.add(f)
        left += [u for u in problem.reads[f] if u not in kept]
    return tuple(sorted(needed))


def _cheap(problem: Problem, among: Iterable[int], stages: int) -> dict[int, tuple[int, ...]]:
    """Storages that are cheap to compute from nothing, with the operations that do."""
    most = CHEAP * problem.baseline_time
    cheap: dict[int, tuple[int, ...]] = {}
    for s in among:
        producers = closure(problem, [s], 0, frozenset())
        if (
            s not in problem.pinned
            and sum(problem.time[f] for f in producers) <= most
            and problem.once.isdisjoint(producers)
        ):
            cheap[s] = producers
    return cheap


def _stage_of(graph: Graph, parts: Sequence[BlockSpan]) -> list[int]:
    of = [0] * len(graph.operations)
    for k, part in enumerate(parts):
        for i in (*range(*part.forward), *range(*part.backward)):
            of[i] = k
    return of


def _reach(problem: Problem, of: Sequence[int], s: int) -> int:
    """The last stage that reads a storage in forward or backward; one past the end if an earlier stage's backward does,
    for then it must be in memory until late."""
    home = of[problem.producer[s]]
    stages = [of[i] for i in problem.readers[s]]
    return max(of) + 2 if any(k < home for k in stages) else max(stages, default=home)


def _joined(problem: Problem, parts: list[BlockSpan]) -> list[BlockSpan]:
    """Leaves with those joined that a value reaches over, and neighbours joined evenly where there are too many."""
    of = _stage_of(problem.graph, parts)
    spans = [(of[problem.producer[s]] + 1, _reach(problem, of, s)) for s in problem.storages]
    glued = [False] * len(parts)  # to the part before
    for first, last in spans:
        if last < len(parts) and last - first < NEAR:
            for k in range(first + 1, last + 1):
                glued[k] = True
    if parts and sum(not g for g in glued) < 3:  # joined all the way: not that kind of chain
        glued = [False] * len(parts)
    groups: list[list[BlockSpan]] = []
    for part, glue in zip(parts, glued, strict=True):
        if glue and groups:
            groups[-1].append(part)
        else:
            groups.append([part])
    width = -(-len(groups) // MOST)
    groups = [[p for group in groups[n : n + width] for p in group] for n in range(0, len(groups), width)]
    return [_one(group) for group in groups]


def _one(group: list[BlockSpan]) -> BlockSpan:
    first, last = group[0], group[-1]
    forward, backward = (first.forward[0], last.forward[1]), (last.backward[0], first.backward[1])
    return msgspec.structs.replace(first, forward=forward, backward=backward, parts=())
