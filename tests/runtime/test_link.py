"""The linker against a symbolic machine: whatever the graph and the reruns, every read sees the right contents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remate_runtime.errors import ScheduleError
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.link.linker import Linked, link
from remate_runtime.link.simulator import simulate
from remate_runtime.step.graph import FlatRerun, Graph, Op, Ref, Value

KINDS = ["aten.relu", "aten.add.Tensor", "aten.mul.Tensor", "aten.mm", "aten.view", "aten.native_dropout", "aten.t"]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[FlatRerun]]:
    """A random step: sources, forward operations, backward operations, an updated buffer, outputs, reruns."""
    square, values, ops = parse_type("f32[4,4]"), [], []
    for name, kind in (("w", "parameter"), ("b", "buffer"), ("x", "input")):
        values.append(Value(name, square, kind))
    turn, end = draw(st.integers(2, 10)), draw(st.integers(2, 10))
    for index in range(turn + end):
        if index == turn:
            values.append(Value("grad.y", square, "tangent"))
        kind = draw(st.sampled_from(KINDS))
        view = kind in ("aten.view", "aten.t")
        count = 2 if kind in ("aten.add.Tensor", "aten.mul.Tensor", "aten.mm") else 1
        reads = [draw(st.integers(0, len(values) - 1)) for _ in range(count)]
        writes = tuple(len(values) + k for k in range(2 if kind == "aten.native_dropout" else 1))
        values += [Value(f"op{index}:{k}", square, "op", index) for k in range(len(writes))]
        random = kind == "aten.native_dropout"
        args = tuple(Ref(r) for r in reads)
        ops.append(Op(f"op{index}", kind, args, {}, tuple(dict.fromkeys(reads)), writes, random, view, random, 10))
    made = [i for i, v in enumerate(values) if 0 <= v.producer < turn]
    late = [i for i, v in enumerate(values) if v.producer >= turn]
    outputs = tuple(draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True)))
    updates = ((1, draw(st.sampled_from(made))),) if draw(st.booleans()) else ()
    gradients = ((0, draw(st.sampled_from(late))), (2, draw(st.sampled_from(late))))
    root = list(range(len(values)))
    for op in ops:
        if op.view:
            root[op.writes[0] or 0] = root[op.reads[0]]
    graph = Graph(tuple(values), tuple(ops), turn, outputs, gradients, updates, tuple(root))
    able = [i for i in range(turn) if not ops[i].view]
    reruns = []
    for _ in range(draw(st.integers(0, 8)) if able else 0):
        op = draw(st.sampled_from(able))
        reruns.append(FlatRerun(op, draw(st.integers(op + 1, len(ops) - 1))))
    return graph, sorted(reruns, key=lambda r: r.before)


class Machine:
    """Executes symbolically: a storage holds a term; views read through; in-place execution replaces the term."""

    def __init__(self, linked: Linked) -> None:
        self.linked, self.graph = linked, linked.graph
        self.slots: dict[int, tuple[int, tuple]] = {}  # value -> (storage, path of views)
        self.contents: dict[int, object] = {}
        self.draws, self.saved = 0, {}
        self.external: set[int] = set()
        for at, value in enumerate(self.graph.values):
            if value.kind not in ("op", "tangent"):
                self.store(at, (value.name,))
                self.external.add(self.slots[at][0])

    def store(self, value: int, term: object) -> None:
        storage = len(self.contents)
        self.contents[storage] = term
        self.slots[value] = (storage, ())

    def read(self, value: int) -> object:
        storage, path = self.slots[value]
        return (path, self.contents[storage])

    def run(self) -> tuple[list, list, object]:
        linked, graph = self.linked, self.graph
        for step in linked.forward:
            self.step(step)
        outputs = [self.slots[v] for v in graph.outputs]
        seen = [self.read(v) for v in graph.outputs]
        news = [(b, self.read(v)) for b, v in graph.updates]
        for buffer in linked.preserve:
            live = self.slots[buffer][0]
            self.store(buffer, self.contents[live])
        for _, new in news:
            self.contents[1] = ("updated", new)  # the live buffer is the second source
        for value in linked.free_at_turn:
            del self.slots[value]
        for at, value in enumerate(graph.values):
            if value.kind == "tangent":
                self.store(at, (value.name,))
                self.external.add(self.slots[at][0])
        for step in linked.backward:
            self.step(step)
        for (storage, path), before in zip(outputs, seen, strict=True):  # an output on a buffer shows its update
            assert storage in self.external or (path, self.contents[storage]) == before, "an output was written over"
        return seen, [self.read(g) for _, g in graph.gradients], [new for _, new in news]

    def step(self, step) -> None:
        op = self.graph.operations[step.op]
        if op.view:
            storage, path = self.slots[op.reads[0]]
            self.slots[op.writes[0]] = (storage, (*path, op.id))
        else:
            term = (op.op, op.id, *(self.read(a.value) for a in op.args))
            if op.random:
                if step.save_generator:
                    self.saved[step.op] = self.draws
                term = (*term, self.saved[step.op] if step.rerun else self.draws)
                self.draws += not step.rerun
            if step.in_place >= 0:
                storage, _ = self.slots[op.args[step.in_place].value]
                assert storage not in self.external
                self.contents[storage] = term
                self.slots[op.writes[0]] = (storage, ())
            else:
                for k, value in enumerate(op.writes):
                    self.store(value, (*term, k) if len(op.writes) > 1 else term)
        for value in step.free:
            del self.slots[value]

    def bytes_held(self) -> int:
        return 64 * len({s for s, _ in self.slots.values()} - self.external)


def plain(graph: Graph) -> tuple[list, list, object]:
    """The same step run in order, nothing freed, nothing in place."""
    linked = link(graph)
    bare = [s.__class__(s.op, s.rerun, -1, (), s.save_generator) for s in (*linked.forward, *linked.backward)]
    cut = len(linked.forward)
    return Machine(Linked(graph, tuple(bare[:cut]), tuple(bare[cut:]), (), linked.preserve, ())).run()


@given(graphs())
def test_reruns_change_no_result(case: tuple[Graph, list[FlatRerun]]) -> None:
    graph, reruns = case
    assert Machine(link(graph, reruns)).run() == plain(graph)


@given(graphs())
def test_every_slot_is_empty_at_the_end_but_gradients(case: tuple[Graph, list[FlatRerun]]) -> None:
    graph, reruns = case
    machine = Machine(link(graph, reruns))
    machine.run()
    kept = {g for _, g in graph.gradients} | {i for i, v in enumerate(graph.values) if v.kind == "tangent"}
    assert set(machine.slots) <= kept


@given(graphs())
def test_simulated_bytes_are_those_of_the_storages(case: tuple[Graph, list[FlatRerun]]) -> None:
    graph, reruns = case
    linked = link(graph, reruns)
    timeline = simulate(linked)
    machine = Machine(linked)
    for at, step in enumerate(linked.forward):
        machine.step(step)
        states = sum(h.nbytes for h in linked.allocations if h.value < 0 and h.birth <= at < h.death)
        assert timeline.after[at] == machine.bytes_held() + states
    assert timeline.peak == max(timeline.during)
    assert timeline.time == sum(graph.operations[s.op].ns for s in (*linked.forward, *linked.backward)) - 10 * sum(
        graph.operations[s.op].view for s in (*linked.forward, *linked.backward)
    )


def two_operations() -> Graph:
    kind = parse_type("f32[4]")
    values = (Value("x", kind, "input"), Value("a", kind, "op", 0), Value("b", kind, "op", 1))
    ops = tuple(Op(f"op{i}", "aten.cos", (Ref(i),), {}, (i,), (i + 1,), False, False, False, 5) for i in range(2))
    return Graph(values, ops, 2, (2,), (), (), (0, 1, 2))


@pytest.mark.parametrize(("op", "before", "code"), [(0, 0, "R045"), (1, 1, "R045"), (5, 1, "R042"), (0, 9, "R042")])
def test_illegal_reruns_are_refused(op: int, before: int, code: str) -> None:
    with pytest.raises(ScheduleError, match=code):
        link(two_operations(), [FlatRerun(op, before)])


def test_peak_by_hand() -> None:
    timeline = simulate(link(two_operations()))
    assert timeline.during == (16, 32, 16)  # a; a and b; the caller holds b
    assert (timeline.peak, timeline.peak_at, timeline.time) == (32, 1, 10)
