"""The truth for tiny steps: Dijkstra over (next operation, resident storages), any recomputations, any number,
anywhere.

Written for comparison only: every move is tried everywhere and nothing is pruned, so that it shares no argument with
what it judges. Sets of storages are bit masks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from remate_runtime.flat_step.graph import FlatRecompute, Graph, Op, Ref
from remate_runtime.link import gathered, last_touches
from remate_runtime.operators import DEVICES
from remate_runtime.operators.tables import IN_PLACE

State = tuple[int, int, int]  # next operation; resident; of the outputs, those that are still what the caller holds
BACKWARD_START = "backward_start"


@dataclass(frozen=True)
class Optimum:
    """time: ns of the whole step. recomputes: a set of recomputations that takes it."""

    time: int
    recomputes: list[FlatRecompute]


class ExactOptimum:
    """A step with all that the search asks for. Storages of the forward, copies of buffers and generator states are
    items, numbered by bits; the two last are decided on when they would be made."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.backward_start = graph, graph.backward_start
        operations = graph.operations
        self.real = [i for i, op in enumerate(operations) if not op.view]
        produced = [v for i in self.real if i < self.backward_start for v in operations[i].writes if v is not None]
        copies = [("copy", graph.root[buffer]) for buffer, _ in graph.updates]
        states = [("state", i) for i in self.real if i < self.backward_start and operations[i].random]
        self.items: list[object] = [*produced, *copies, *states]
        self.bit = {item: 1 << k for k, item in enumerate(self.items)}
        size = (
            [graph.nbytes(v) for v in produced]
            + [graph.nbytes(b) for _, b in copies]
            + [DEVICES["cpu"].generator_state for _ in states]
        )
        self.total = [0]
        for nbytes in size:
            self.total += [t + nbytes for t in self.total]
        self.copied = self._mask(copies)
        self.outputs = self._mask(graph.root[v] for v in graph.outputs)
        self.updated = self._mask(graph.root[v] for _, v in graph.updates)
        self.last: dict[int, int] = {}
        for i in self.real:
            self.last.update((graph.root[v], i) for v in operations[i].reads)
        self.gradients = {graph.root[v] for _, v in graph.gradients}
        self.to_the_end = self.gradients
        if graph.delivered != "retained":  # the last group of gradients is delivered at the end
            groups = gathered(graph, last_touches(graph))
            self.to_the_end = {graph.root[graph.gradients[n][1]] for n in groups[-1].gradients} if groups else set()
            for group in groups:
                self.last.update((graph.root[graph.gradients[n][1]], group.after) for n in group.gradients)
        self.base = [self._backward_bytes(i) for i in range(len(operations))]
        self.needs = [(self._needs(i, False), self._needs(i, True)) for i in range(len(operations))]
        self.produced = [self._mask(op.writes) for op in operations]
        self.victims = [list(self._victims(op)) for op in operations]
        self.state = [self.bit.get(("state", i), 0) for i in range(len(operations))]
        self.new = [sum(graph.nbytes(v) for v in op.writes if v is not None and v not in self.bit) for op in operations]
        self.time = sum(operations[i].ns for i in self.real)

    def _mask(self, items) -> int:
        return sum(self.bit[item] for item in set(items) if item in self.bit)

    def _backward_bytes(self, i: int) -> int:
        """Bytes of backward in memory while operation i runs, whatever is recomputed: tangents, values of backward from
        their production to their last read, and gradients and outputs until the end."""
        graph, total = self.graph, 0
        if i < self.backward_start:
            return 0
        for v, value in enumerate(graph.values):
            result = self.backward_start - 1 if value.kind == "tangent" else value.producer
            own = graph.root[v] == v and result >= self.backward_start - (value.kind == "tangent") and result >= 0
            if own and (value.kind in ("tangent", "op")):
                unread = len(graph.operations) if value.kind == "tangent" else result
                to_the_end = v in self.to_the_end or (value.kind == "tangent" and graph.nbytes(v) == 1)
                end = len(graph.operations) if to_the_end else self.last.get(v, unread)
                total += graph.nbytes(v) * (result < i <= end)
        return total + self.total[self.outputs]

    def _needs(self, i: int, after_backward_start: bool) -> int:
        """Items that a run of operation i reads. A recomputation also needs its generator state."""
        roots = [self.graph.root[v] for v in self.graph.operations[i].reads]
        return self._mask(roots) | (self._mask(("copy", r) for r in roots) if after_backward_start else 0)

    def _victims(self, op: Op) -> Iterator[int]:
        """Storages that the operation may overwrite if nothing needs them later."""
        graph = self.graph
        for position in IN_PLACE[op.op].positions if op.op in IN_PLACE and len(op.writes) == 1 else ():
            argument = op.args[position]
            assert isinstance(argument, Ref)
            assert op.writes[0] is not None
            s = graph.root[argument.value]
            same = graph.values[argument.value].type == graph.values[op.writes[0]].type
            whole = graph.nbytes(s) == graph.nbytes(op.writes[0])
            alone = sum(graph.root[v] == s for v in op.reads) == 1 and sum(a == argument for a in op.args) == 1
            if same and whole and alone and (position == 0 or len(op.args) == 2):
                yield s

    def fastest(self, budget: int) -> Optimum | None:
        """The least time of any recomputations whose peak is at most `budget` bytes; None if no plan fits."""
        start: State = (0, 0, 0)
        least: dict[State, int] = {start: 0}
        before: dict[State, tuple[State, int]] = {}
        queue: list[tuple[int, State]] = [(0, start)]
        done: set[State] = set()
        while queue:
            time, state = heapq.heappop(queue)
            if state in done:
                continue
            done.add(state)
            if state[0] == len(self.graph.operations) + 2:
                return Optimum(self.time + time, self._recomputes(state, before))
            for following, op, held in self._moves(state):
                cost = time + (self.graph.operations[op].ns if op >= 0 else 0)
                if held <= budget and cost < least.get(following, cost + 1):
                    least[following], before[following] = cost, (state, op)
                    heapq.heappush(queue, (cost, following))
        return None

    def least_peak(self) -> int:
        """The smallest feasible budget: Dijkstra by the most bytes held so far."""
        start: State = (0, 0, 0)
        least: dict[State, int] = {start: 0}
        queue: list[tuple[int, State]] = [(0, start)]
        while queue:
            most, state = heapq.heappop(queue)
            if state[0] == len(self.graph.operations) + 2:
                return most
            if most > least[state]:
                continue
            for following, _, held in self._moves(state):
                peak = max(most, held)
                if peak < least.get(following, peak + 1):
                    least[following] = peak
                    heapq.heappush(queue, (peak, following))
        raise AssertionError("no sequence reaches the end")

    def _recomputes(self, state: State, before: dict[State, tuple[State, int]]) -> list[FlatRecompute]:
        results = []
        while state in before:
            state, op = before[state]
            if op >= 0:
                results.append(FlatRecompute(op, state[0] - 2 * (state[0] > self.backward_start)))
        return results[::-1]

    def _moves(self, state: State) -> Iterator[tuple[State, int, int]]:
        """(state that follows, operation that ran again or -1, bytes held meanwhile). Points count
        the updates of buffers and the forward/backward boundary between forward and backward."""
        point, resident, returned = state
        for k in range(len(self.items)):
            if resident >> k & 1:
                yield (point, resident & ~(1 << k), returned), -1, 0
        if point == self.backward_start:
            yield from self._updated(resident)
            return
        if point == self.backward_start + 1:
            yield from self._turned(resident)
            return
        i = point - 2 * (point > self.backward_start)
        base, there, after_backward_start = self.base[i], resident | returned, point > self.backward_start
        for f in self.real:
            if f >= min(i, self.backward_start):
                break
            state_of_f = self.state[f]
            if (self.needs[f][after_backward_start] | state_of_f) & ~there:
                continue
            workspace, produced = self.graph.operations[f].workspace, self.produced[f]
            for gone in (0, *(self.bit[s] for s in self.victims[f] if s in self.bit)):
                if gone & resident == gone:
                    after = (resident | produced) & ~gone
                    held = base + self.total[after] + workspace + self.total[state_of_f]  # the present state, too
                    yield (point, after, returned & ~produced), f, held
        yield from self._first_run(state, i)

    def _updated(self, resident: int) -> Iterator[tuple[State, int, int]]:
        """Buffers are updated: every choice of copies of old contents."""
        if (self.outputs | self.updated) & ~resident:
            return
        kept = self.copied
        while True:
            yield (self.backward_start + 1, resident | kept, 0), -1, self.total[resident | kept]
            if not kept:
                return
            kept = (kept - 1) & self.copied

    def _turned(self, resident: int) -> Iterator[tuple[State, int, int]]:
        """Outputs pass to the caller, and tangents arrive."""
        if self.outputs & ~resident:
            return
        tangents = sum(self.graph.nbytes(v) for v, x in enumerate(self.graph.values) if x.kind == "tangent")
        yield (self.backward_start + 2, resident & ~self.outputs, self.outputs), -1, self.total[resident] + tangents

    def _first_run(self, state: State, i: int) -> Iterator[tuple[State, int, int]]:
        point, resident, returned = state
        op = self.graph.operations[i]
        if op.view:
            yield (point + 1, resident, returned), -1, 0
            return
        if self.needs[i][point > self.backward_start] & ~(resident | returned):
            return
        produced, base = self.produced[i], self.base[i] + op.workspace + self.new[i]
        for state_of_i in {0, self.state[i]}:
            after = resident | produced | state_of_i
            yield (point + 1, after, returned), -1, base + self.total[after]
            for s in self.victims[i]:
                gone = self.bit.get(s, 0)
                if gone and gone & resident:
                    yield (point + 1, after & ~gone, returned), -1, base + self.total[after & ~gone]
                elif not gone and self.graph.values[s].kind == "op" and self.last[s] == i and s not in self.gradients:
                    yield (point + 1, after, returned), -1, base + self.total[after] - self.graph.nbytes(s)
