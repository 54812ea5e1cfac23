"""The linker against a symbolic machine: whatever the graph and the recomputations, every read sees the right
contents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step.graph import FlatRecompute, Graph, Op, Ref, Value
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.link.events import (
    BackwardStart,
    Deliver,
    Event,
    Free,
    Linked,
    PageBack,
    PageGone,
    PageOut,
    PageReady,
    RecomputeRun,
    Run,
    Update,
    View,
)
from remate_runtime.link.inference import forward_alone
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate
from remate_runtime.operators import DEVICES

KINDS = ["aten.relu", "aten.add.Tensor", "aten.mul.Tensor", "aten.mm", "aten.view", "aten.native_dropout", "aten.t"]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[FlatRecompute]]:
    """A random step: sources, forward operations, backward operations, an updated buffer, outputs, recomputations."""
    square, values, ops = parse_type("f32[4,4]"), [], []
    for name, kind in (("w", "parameter"), ("b", "buffer"), ("x", "input")):
        values.append(Value(name, square, kind))
    backward_start, end = draw(st.integers(2, 10)), draw(st.integers(2, 10))
    for index in range(backward_start + end):
        if index == backward_start:
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
    made = [i for i, v in enumerate(values) if 0 <= v.producer < backward_start]
    late = [i for i, v in enumerate(values) if v.producer >= backward_start]
    outputs = tuple(draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True)))
    gradients = ((0, draw(st.sampled_from(late))), (2, draw(st.sampled_from(late))))
    root = list(range(len(values)))
    for op in ops:
        if op.view:
            root[op.writes[0] or 0] = root[op.reads[0]]
    news = [i for i in made if root[i] != 1]  # a reader refuses an update in the storage of an updated buffer
    updates = ((1, draw(st.sampled_from(news))),) if news and draw(st.booleans()) else ()
    graph = Graph(tuple(values), tuple(ops), backward_start, outputs, gradients, updates, tuple(root))
    able = [i for i in range(backward_start) if not ops[i].view]
    recomputes = []
    for _ in range(draw(st.integers(0, 8)) if able else 0):
        op = draw(st.sampled_from(able))
        recomputes.append(FlatRecompute(op, draw(st.integers(op + 1, len(ops) - 1))))
    return graph, sorted(recomputes, key=lambda r: r.before)


class Machine:
    """Executes symbolically: a storage holds a term; views read through; in-place execution replaces the term."""

    def __init__(self, linked: Linked) -> None:
        self.linked, self.graph = linked, linked.graph
        self.slots: dict[int, tuple[int, tuple]] = {}  # value -> (storage, path of views)
        self.contents: dict[int, object] = {}
        self.draws, self.saved = 0, dict[int, int]()
        self.external: set[int] = set()
        self.size: dict[int, int] = {}
        self.kept: set[int] = set()  # storages that the caller holds
        self.copying: dict[int, tuple[int, object]] = {}  # by trip of a page: storage on the device, contents
        self.copied, self.owned = 0, set[int]()  # bytes of copies of gradients; values that own delivered ones
        for at, value in enumerate(self.graph.values):
            if value.kind not in ("op", "tangent"):
                self.store(at, (value.name,))
                self.external.add(self.slots[at][0])
        self.parameters = {at: self.slots[at][0] for at, v in enumerate(self.graph.values) if v.kind == "parameter"}
        self.missing: set[int] = set()  # storages of parameters whose bytes are not on the device
        for event in reversed(linked.events):
            if isinstance(event, PageBack | PageGone) and event.value in self.parameters:
                change = self.missing.add if isinstance(event, PageBack) else self.missing.discard
                change(self.parameters[event.value])

    def store(self, value: int | None, term: object) -> None:
        assert value is not None
        storage = len(self.contents)
        self.size[storage] = self.graph.nbytes(value)
        self.contents[storage] = term
        self.slots[value] = (storage, ())

    def read(self, value: int) -> object:
        storage, path = self.slots[value]
        assert storage not in self.missing, "read while it is away"
        return (path, self.contents[storage])

    def run(self) -> tuple[list, list, object]:
        graph = self.graph
        outputs, seen, news = [], [], []
        for event in self.linked.events:
            if isinstance(event, BackwardStart):
                outputs = [self.slots[v] for v in graph.outputs]
                seen = [self.read(v) for v in graph.outputs]
                news = [self.contents[1]] if graph.updates else []  # the live buffer is the second source
            self.happen(event)
        for (storage, path), before in zip(outputs, seen, strict=True):
            assert (path, self.contents[storage]) == before, "an output was written over"
        return seen, [self.read(g) for _, g in graph.gradients], news

    def happen(self, event: Event) -> None:
        graph = self.graph
        match event:
            case Run() | RecomputeRun():
                self.compute(event)
            case View(op=op):
                (base,), (made,) = graph.operations[op].reads, graph.operations[op].writes
                assert made is not None
                storage, path = self.slots[base]
                self.slots[made] = (storage, (*path, graph.operations[op].id))
            case Free(values=values):
                self.empty(values)
            case Update(buffer=buffer, value=value, preserves=preserves):
                live, _ = self.slots[buffer]
                new = ("updated", self.read(value))
                if preserves:
                    self.store(buffer, self.contents[live])
                self.contents[live] = new
            case BackwardStart(frees=frees):
                self.kept = {self.slots[v][0] for v in graph.outputs}
                self.empty(frees)
                for at, value in enumerate(graph.values):
                    if value.kind == "tangent":
                        self.store(at, (value.name,))
                        if graph.held_by_caller(at):
                            self.kept.add(self.slots[at][0])
            case Deliver(gradients=numbers):
                self.deliver(numbers)
            case PageGone() | PageBack() | PageReady() if event.value in self.parameters:
                self.page_parameter(event)
            case PageGone(value=value, trip=trip) if self.graph.values[value].producer >= self.graph.backward_start:
                assert value in {gradient for _, gradient in self.graph.gradients}
                storage, term = self.copying.pop(trip)
                path = self.slots[value][1]
                assert self.contents[storage] is term
                self.store(value, term)
                self.slots[value] = self.slots[value][0], path
                self.external.add(self.slots[value][0])
            case PageOut(value=value, trip=trip):
                self.copying[trip] = self.slots[value][0], self.contents[self.slots[value][0]]
            case PageGone(value=value, trip=trip):
                storage, term = self.copying[trip]
                assert self.slots[value] == (storage, ())
                assert self.contents[storage] is term, "written over while it is copied"
            case PageBack(value=value, trip=trip):
                self.store(value, "not yet there")
                self.copying[trip] = self.slots[value][0], self.copying[trip][1]
            case PageReady(value=value, trip=trip):
                storage, term = self.copying.pop(trip)
                assert self.slots[value] == (storage, ())
                assert self.contents[storage] == "not yet there"
                self.contents[storage] = term

    def page_parameter(self, event: PageGone | PageBack | PageReady) -> None:
        storage = self.parameters[event.value]
        if isinstance(event, PageGone):
            assert storage not in self.missing
            self.missing.add(storage)
        elif isinstance(event, PageBack):
            assert storage in self.missing
            self.missing.discard(storage)
            self.copying[event.trip] = storage, None
        else:
            assert self.copying.pop(event.trip)[0] == storage

    def deliver(self, numbers: tuple[int, ...]) -> None:
        """Each owner gets a storage of its own; the storage of a gradient is one of them."""
        for number in numbers:
            value = self.graph.gradients[number][1]
            owner = self.graph.root[value]
            if owner in self.owned or self.graph.values[owner].kind != "op":
                self.copied += self.graph.values[value].type.dense.nbytes
            self.owned.add(owner)

    def empty(self, values: tuple[int, ...]) -> None:
        for value in values:
            del self.slots[value]

    def compute(self, event: Run | RecomputeRun) -> None:
        op = self.graph.operations[event.op]
        term = (op.op, op.id, *(self.read(a.value) for a in op.args))
        if op.random:
            if isinstance(event, Run) and event.saves_state:
                self.saved[event.op] = self.draws
            term = (*term, self.saved[event.op] if isinstance(event, RecomputeRun) else self.draws)
            if isinstance(event, Run):
                self.draws += 1
            elif event.drops_state:
                del self.saved[event.op]
        if event.overwrites is not None:
            storage, _ = self.slots[op.args[event.overwrites].value]
            assert storage not in self.external
            self.contents[storage] = term
            assert op.writes[0] is not None
            self.slots[op.writes[0]] = (storage, ())
        else:
            for k, value in enumerate(op.writes):
                self.store(value, (*term, k) if len(op.writes) > 1 else term)

    def bytes_held(self) -> int:
        storages = {s for s, _ in self.slots.values()} | self.kept
        states = DEVICES["cpu"].generator_state * len(self.saved)
        there = set(self.parameters.values()) - self.missing if self.linked.parameters_paged else set[int]()
        return sum(self.size[s] for s in storages - self.external | there) + states + self.copied


def plain(graph: Graph) -> tuple[list, list, object]:
    """The same step run in order, nothing freed, nothing in place."""
    events: list[Event] = []
    for event in link(graph).events:
        match event:
            case Run():
                events.append(Run(event.op))
            case BackwardStart():
                events.append(BackwardStart(()))
            case View() | Update():
                events.append(event)
    return Machine(Linked(graph, tuple(events), 0, ())).run()


@pytest.mark.slow
@given(graphs())
def test_recomputes_change_no_result(case: tuple[Graph, list[FlatRecompute]]) -> None:
    graph, recomputes = case
    assert Machine(link(graph, recomputes)).run() == plain(graph)


@pytest.mark.slow
@given(graphs())
def test_every_slot_is_empty_at_the_end_but_gradients(case: tuple[Graph, list[FlatRecompute]]) -> None:
    graph, recomputes = case
    machine = Machine(link(graph, recomputes))
    machine.run()
    kept = {g for _, g in graph.gradients} | {i for i, v in enumerate(graph.values) if v.kind == "tangent"}
    assert set(machine.slots) <= kept
    assert not machine.saved


@pytest.mark.slow
@given(graphs())
def test_simulated_bytes_are_those_of_the_storages(case: tuple[Graph, list[FlatRecompute]]) -> None:
    graph, recomputes = case
    linked = link(graph, recomputes)
    account = simulate(linked).device
    machine = Machine(linked)
    for at, event in enumerate(linked.events):
        saved = len(machine.saved)
        machine.happen(event)
        replaying = isinstance(event, RecomputeRun) and graph.operations[event.op].random
        if replaying:  # the state that the generator has, and the one that is replayed
            saved = saved - len(machine.saved) + 1
        held = machine.bytes_held() + DEVICES["cpu"].generator_state * saved * replaying
        assert account.during[at] == held
        if not isinstance(linked.events[at + 1] if at + 1 < len(linked.events) else event, Free | BackwardStart):
            assert account.after[at] == machine.bytes_held()
    assert account.peak == max(account.during) == account.during[account.peak_at]
    computations = [graph.operations[e.op] for e in linked.events if isinstance(e, Run | RecomputeRun)]
    assert simulate(linked).time == sum(op.ns for op in computations)


@given(graphs())
def test_forward_alone_gives_the_same_outputs(case: tuple[Graph, list[FlatRecompute]]) -> None:
    graph, recomputes = case
    linked = link(graph, recomputes)
    machine = Machine(linked)
    for event in (*forward_alone(linked), *(e for e in linked.events if isinstance(e, Update))):
        machine.happen(event)
    wanted = {*graph.outputs, *(value for _, value in graph.updates)}
    assert [machine.read(v) for v in graph.outputs] == plain(graph)[0]
    assert set(machine.slots) <= wanted | {i for i, v in enumerate(graph.values) if v.producer < 0}
    assert not machine.saved
    assert machine.draws == sum(op.random for op in graph.operations[: graph.backward_start])


def two_operations() -> Graph:
    kind = parse_type("f32[4]")
    values = (Value("x", kind, "input"), Value("a", kind, "op", 0), Value("b", kind, "op", 1))
    ops = tuple(Op(f"op{i}", "aten.cos", (Ref(i),), {}, (i,), (i + 1,), False, False, False, 5) for i in range(2))
    return Graph(values, ops, 2, (2,), (), (), (0, 1, 2))


@pytest.mark.parametrize(("op", "before", "code"), [(0, 0, "R045"), (1, 1, "R045"), (5, 1, "R042"), (0, 9, "R042")])
def test_illegal_recomputes_are_refused(op: int, before: int, code: str) -> None:
    with pytest.raises(ScheduleError, match=code):
        link(two_operations(), [FlatRecompute(op, before)])


def test_peak_by_hand() -> None:
    linked = link(two_operations())
    assert linked.events == (Run(0), Free((0,)), Run(1), Free((1,)), BackwardStart((2,)))
    timeline = simulate(linked)
    assert timeline.during == (16, 16, 32, 16, 16)  # a; a; a and b; a is freed; the caller holds b
    assert timeline.after == (16, 16, 16, 16, 16)
    assert (timeline.peak, timeline.peak_at, timeline.time) == (32, 2, 10)


def updating(backward: tuple[int, ...]) -> Graph:
    """b is a buffer. a = cos(x), c = cos(a) in forward; b takes a; the gradient of x reads `backward`."""
    kind = parse_type("f32[4]")
    values = (
        Value("x", kind, "input"),
        Value("b", kind, "buffer"),
        Value("a", kind, "op", 0),
        Value("c", kind, "op", 1),
    )
    values += (Value("grad.c", kind, "tangent"), Value("g", kind, "op", 2))
    ops = tuple(
        Op(f"op{i}", "aten.cos", tuple(map(Ref, r)), {}, r, (made,), False, False, False, 5)
        for i, (r, made) in enumerate(zip(((0,), (2,), backward), (2, 3, 5), strict=True))
    )
    return Graph(values, ops, 2, (3,), ((0, 5),), ((1, 2),), tuple(range(6)))


def test_a_buffer_takes_the_value_of_the_latest_run_before_the_backward_start() -> None:
    """The first run's value would have to be kept beside the recomputation's, for the same contents."""
    assert link(updating((4, 2, 1)), [FlatRecompute(0, 1)]).events == (
        Run(0),
        Free((2,)),
        RecomputeRun(0),
        Free((0,)),
        Run(1),
        Update(1, 2, preserves=True),
        BackwardStart((3,)),
        Run(2),
        Free((4, 2, 1)),
        Deliver((0,)),
    )


def test_what_only_an_update_needs_is_gone_before_the_tangents_arrive() -> None:
    graph = updating((4,))
    linked = link(graph)
    assert linked.events[3:5] == (Update(1, 2, preserves=False), BackwardStart((1, 2, 3)))
    assert [(graph.values[a.value or 0].name, a.birth, a.death) for a in linked.allocations] == [
        ("a", 0, 4),
        ("c", 2, 8),
        ("grad.c", 4, 6),
        ("g", 5, 8),
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"], ids=["on the CPU", "on a GPU"])
def test_each_memory_has_its_own_account(device: str) -> None:
    """One value stays on the CPU, drawn there, with workspace; its reader is on the device and runs again."""
    host, main = parse_type("f32[3]@cpu"), parse_type("f32[4]")
    values = (Value("h", host, "op", 0), Value("m", main, "op", 1), Value("y", main, "op", 2))
    ops = (
        Op("op0", "aten.rand", (), {}, (), (0,), False, False, True, 5, 100),
        Op("op1", "aten.rand", (Ref(0),), {}, (0,), (1,), False, False, True, 5, 1000),
        Op("op2", "aten.cos", (Ref(1),), {}, (1,), (2,), False, False, False, 5),
    )
    graph = Graph(values, ops, 3, (2,), (), (), (0, 1, 2), device)
    timeline = simulate(link(graph, [FlatRecompute(0, 2), FlatRecompute(1, 2)]))
    if device == "cpu":
        assert timeline.memories.keys() == {"device"}
        assert timeline.during[0] == 5056 + 12 + 100
        return
    assert timeline.memories.keys() == {"device", "host"}
    # run 0, run 1, free, recompute 0, recompute 1, free, run 2, free, turn
    assert timeline.during == (0, 512 + 1000, 0, 0, 512 + 1000, 512, 1024, 512, 512)
    saved = 5056, 16  # of the CPU's generator and of CUDA's
    both = sum(saved)
    replays = (both + 12 + 100 + saved[0], saved[1] + 12 + saved[1])
    assert timeline.memories["host"].during == (saved[0] + 112, both + 12, both, *replays, 0, 0, 0, 0)
    assert timeline.peak == 1512
