"""A training step as a chain of stages, for the classical strategies.

Stages are leaves of the hierarchy. In a step without one, they are segments between small cuts: fine or coarse, with
the backward divided by either of two rules, because no such chain is the best for every step. If a value reaches a
little beyond the next leaf (a residual that spans two of them), the leaves between are joined. Values that reach
further (skips of a U-Net, an encoder's output, masks) are kept all the time, and the rest is treated as a chain. Values
that are cheap to compute from the step's inputs (an embedding, a position bias, a mask) need not take memory where it
is scarce, as at the loss. They are freed after the forward, and computed again by the stages that read them, or once
for all of them if they reach far. The simulator decides how well this describes the step.
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
CHEAP = 0.0025  # share of the step's time up to which computing a value from the inputs is cheap
MOST = 120  # stages; the dynamic program takes their number to the third power

Rule = Callable[[Problem, Segments], tuple[int, ...]]  # divides the backward among segments: a function of `segments`


class Stage(msgspec.Struct, frozen=True):
    """One stage.

    Attributes:
        forward: Range of operations.
        backward: Range of operations.
        makes: Operations that compute, from the boundary before the stage, the values that the next stage reads. They
            may begin with cheap operations of earlier stages.
        needs: The same for the values that the stage's own backward reads.
        carried: Bytes that the next stage reads, less those that it computes itself.
        apart: Bytes of results that are counted elsewhere: they are always kept, or the next stage computes them
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

    All bytes are the simulator's, without recomputation.

    Attributes:
        blocks: The blocks that the stages come from.
        stages: In forward order.
        keep: By stage, its plan that retains everything, simulated alone.
        drop: By stage, its plan that retains only its outputs, simulated alone.
        before_backward: By stage, bytes in memory when its backward begins, beside those that stages up to it retain.
        in_backward: By stage, bytes at the worst moment of its backward, beside the stage's own.
        lasting: Storages that reach further than the next stage.
        cheap: Storages that are freed, with the operations that compute them.
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
        """Return the bytes that stage k retains under a plan, without those that are counted elsewhere."""
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
        """Return bytes by stage k when its backward begins.

        Returns:
            Bytes of the stages below k if nothing runs again; bytes of stage k itself; and further bytes of lasting
            values. The first two differ from what the stages have alone, because values that only the next stage's
            forward reads are freed by then. The last ones are kept for recomputations, less those that are freed until
            the backward of the last stage that reads them.
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
    """Return the chain of a step's blocks, or of coarse segments if the step has no blocks."""
    return instance.view(_chain, FEW, aligned_stages)


def chains_of(instance: StepInstance) -> tuple[Chain, ...]:
    """Return all chains of a step, beginning with that of `chain_of`.

    A step with blocks has one chain; a step without blocks has one for each segmentation.
    """
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
    """Return blocks of a step that has none.

    Each block is a segment of about `length` operations of the forward, with its own stage of the backward.
    """
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
    """Return operations that must run again to compute storages, ascending.

    Args:
        problem: The step.
        wanted: The storages.
        begin: Operations before this one are not run again, except those of `besides`.
        kept: Storages in memory.
        besides: Earlier operations that may run again.
    """
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
    """Return storages that are cheap to compute from the step's inputs, with the operations that compute them."""
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
    """Return the last stage that reads a storage in forward or backward.

    If the backward of an earlier stage reads it, return one past the end, because the storage must stay in memory until
    late.
    """
    home = of[problem.producer[s]]
    stages = [of[i] for i in problem.readers[s]]
    return max(of) + 2 if any(k < home for k in stages) else max(stages, default=home)


def _joined(problem: Problem, parts: list[BlockSpan]) -> list[BlockSpan]:
    """Return leaves, joined where a value reaches over them, and joined evenly if there are too many."""
    of = _stage_of(problem.graph, parts)
    spans = [(of[problem.producer[s]] + 1, _reach(problem, of, s)) for s in problem.storages]
    glued = [False] * len(parts)  # whether a part is joined to the part before it
    for first, last in spans:
        if last < len(parts) and last - first < NEAR:
            for k in range(first + 1, last + 1):
                glued[k] = True
    if parts and sum(not g for g in glued) < 3:  # nearly everything would be joined: this is no such chain
        glued = [False] * len(parts)
    groups: list[list[BlockSpan]] = []
    for part, glue in zip(parts, glued, strict=True):
        if glue and groups:
            groups[-1].append(part)
        else:
            groups.append([part])
    width = -(-len(groups) // MOST)
    groups = [[p for group in groups[n : n + width] for p in group] for n in range(0, len(groups), width)]
    return [_merged(group) for group in groups]


def _merged(group: list[BlockSpan]) -> BlockSpan:
    first, last = group[0], group[-1]
    forward, backward = (first.forward[0], last.forward[1]), (last.backward[0], first.backward[1])
    return msgspec.structs.replace(first, forward=forward, backward=backward, parts=())
