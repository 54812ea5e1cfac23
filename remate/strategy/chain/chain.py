"""A training step as a chain of stages, which is what the classical strategies reason about.

Stages are leaves of the hierarchy; of a step without one, segments between small cuts. Where a value reaches a little over the next leaf (a residual that spans two of
them), the leaves between are joined; values that reach further (skips of a U-Net, an encoder's output, masks) are kept
all the time, and the rest is treated as a chain. How well that describes the step, the simulator tells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from remate_runtime.link import Execution, link, simulate
from remate_runtime.step import FlatRerun, Graph

from ...partition.canonical import readers_of
from ...partition.hierarchy import BlockSpan
from ...partition.leaf_graph import leaf_graph
from ..blocks.block_plan import BlockPlan, simulated_plan
from ..instance import Instance
from ..problem import Problem
from ..segments import aligned_stages, segment_length, segments

LENGTH = 32  # operations in a segment of a step without hierarchy, at most
FEW = 16  # segments of a small one
NEAR = 3  # leaves that a value may reach over and still be a boundary, when leaves are joined
MOST = 120  # stages: the dynamic programme takes their number to the third power


class Stage(msgspec.Struct, frozen=True):
    """One stage. forward, backward: ranges of operations. makes: operations that make again, from the boundary before
    it, what the next stage reads. needs: those that make again what its own backward reads. carried: bytes of what the
    next stage reads. lasting: bytes of what it makes that is kept whatever is decided."""

    forward: tuple[int, int]
    backward: tuple[int, int]
    makes: tuple[int, ...]
    needs: tuple[int, ...]
    carried: int
    lasting: int


class Chain:
    """The stages of a step, and the bytes beside what they retain. blocks: those they come from. stages: in forward
    order. keep[s], drop[s]: stage s
    alone, retaining everything and nothing but its outputs. before_backward[s]: bytes held when backward of stage s
    begins, beside what stages up to s retain; in_backward[s]: the same at the worst moment of that backward, beside what
    the stage holds by itself. By the simulator, without reruns."""

    def __init__(self, problem: Problem, blocks: Sequence[BlockSpan]) -> None:
        self.problem = problem
        graph = problem.graph
        self.blocks = tuple(blocks) or segment_blocks(problem, segment_length(problem, LENGTH, FEW))
        parts = _joined(problem, [leaf for part in self.blocks for leaf in part.leaves()])
        of = _stage_of(graph, parts)
        reach = {s: _reach(problem, of, s) for s in problem.storages}
        self.stages = [_stage(problem, part, k, reach) for k, part in enumerate(parts)]
        readers = readers_of(graph)
        self.leaf = [leaf_graph(graph, part, readers) for part in parts]
        self.keep = [simulated_plan(leaf, ()) for leaf in self.leaf]
        self.drop = [self._dropped(k) for k in range(len(parts))]
        self._bases(of)

    def retained(self, k: int, plan: BlockPlan) -> int:
        """Bytes that stage k retains under a plan, what is kept whatever is decided apart."""
        return plan.retained - self.stages[k].lasting

    def _dropped(self, k: int) -> BlockPlan:
        leaf, stage = self.leaf[k], self.stages[k]
        first = leaf.graph.backward_start
        if first == len(leaf.graph.operations):
            return self.keep[k]
        return simulated_plan(leaf, tuple(FlatRerun(f - stage.forward[0], first) for f in stage.needs))

    def _bases(self, of: Sequence[int]) -> None:
        graph = self.problem.graph
        linked = link(graph)
        timeline = simulate(linked)
        count = len(self.stages)
        self.baseline = timeline.peak
        self.before_backward, worst = [0] * count, [0] * count
        at_turn, begun = timeline.after[timeline.turn], [False] * count
        for n, event in enumerate(linked.events):
            if not isinstance(event, Execution) or event.op < graph.backward_start:
                continue
            k = of[event.op]
            if not begun[k]:
                begun[k], self.before_backward[k] = True, timeline.after[n - 1]
            worst[k] = max(worst[k], timeline.during[n])
        for k in range(count - 1, -1, -1):  # a stage without backward: as the stage after it
            if not begun[k]:
                self.before_backward[k] = self.before_backward[k + 1] if k + 1 < count else at_turn
        self.in_backward = [0] * count
        lower = 0
        for k in range(count):
            here = self.retained(k, self.keep[k])
            self.in_backward[k] = max(0, worst[k] - lower - self.keep[k].backward_peak)
            lower += here
            self.before_backward[k] = max(0, self.before_backward[k] - lower)


def chain_of(instance: Instance) -> Chain:
    """The chain of a step, built once."""
    return instance.view(_built)


def _built(instance: Instance) -> Chain:
    return Chain(instance.problem, instance.blocks)


def segment_blocks(problem: Problem, length: int) -> tuple[BlockSpan, ...]:
    """Blocks of a step that has none: segments of about `length` operations of the forward, each with the stage of the
    backward that is its own."""
    split = segments(problem, length)
    stages = aligned_stages(problem, split)
    count, turn = len(split.ends), problem.backward_start
    spans: list[BlockSpan] = []
    for n, end in enumerate(split.ends):
        stage = count - 1 - n
        first, stop = bisect_left(stages, stage), bisect_right(stages, stage)
        begin = split.ends[n - 1] + 1 if n else 0
        spans.append(BlockSpan(f"segment.{n}", "", f"segment.{n}", (begin, end + 1), (turn + first, turn + stop)))
    return tuple(spans)


def closure(problem: Problem, wanted: Iterable[int], begin: int, kept: frozenset[int]) -> tuple[int, ...]:
    """Operations from `begin` on that must run again to have the storages `wanted`, in order; `kept` ones are there."""
    needed: set[int] = set()
    left = [s for s in wanted if s not in kept]
    while left:
        f = problem.producer[left.pop()]
        if f < begin or f >= problem.backward_start or f in needed:
            continue
        needed.add(f)
        left += [u for u in problem.reads[f] if u not in kept]
    return tuple(sorted(needed))


def _stage(problem: Problem, part: BlockSpan, k: int, reach: dict[int, int]) -> Stage:
    begin, end = part.forward
    inside = [s for f in range(begin, end) if problem.real[f] for s in problem.writes[f]]
    lasting = frozenset(s for s in inside if reach[s] > k + 1 or s in problem.returned)
    carried = [s for s in inside if reach[s] == k + 1 and s not in lasting]
    read = {s for i in range(*part.backward) for s in problem.reads[i] if begin <= problem.producer[s] < end}
    return Stage(
        part.forward,
        part.backward,
        closure(problem, carried, begin, lasting),
        closure(problem, sorted(read.difference(carried)), begin, lasting.union(carried)),
        sum(problem.size[s] for s in carried),
        sum(problem.size[s] for s in lasting),
    )


def _stage_of(graph: Graph, parts: Sequence[BlockSpan]) -> list[int]:
    of = [0] * len(graph.operations)
    for k, part in enumerate(parts):
        for i in (*range(*part.forward), *range(*part.backward)):
            of[i] = k
    return of


def _reach(problem: Problem, of: Sequence[int], s: int) -> int:
    """The last stage that reads a storage in forward or backward; one past the end if an earlier stage's backward does,
    for it must then be there until late."""
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
