"""Pages in the linker: whatever is paged and recomputed, every read sees the right contents, and bytes are those of the
storages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step.graph import FlatPage, FlatRecompute, Graph, Op, Ref, Value
from remate_runtime.flat_step.page_rules import held_outside, is_paged_gradient, stays
from remate_runtime.format.schedule import Lane
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.link.events import Free, Linked, PageBack, PageGone, PageOut, PageReady, RecomputeRun, Run, Update
from remate_runtime.link.frozen import without_gradients
from remate_runtime.link.inference import forward_alone
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate
from remate_runtime.operators import DEVICES

from .test_link import Machine, graphs, plain


def forward_makes(graph: Graph, value: int) -> bool:
    return 0 <= graph.values[value].producer < graph.backward_start


@st.composite
def paged_steps(draw: st.DrawFn) -> Linked:
    graph, recomputes = draw(graphs())
    held = held_outside(graph)
    able = [value for value in range(len(graph.values)) if not stays(graph, value, held)]
    pages = []
    for _ in range(draw(st.integers(1, 6)) if able else 0):
        value = draw(st.sampled_from(able))
        last = len(graph.operations) - 1
        first = min(graph.values[value].producer + 1, last)
        points = sorted(draw(st.lists(st.integers(first, last), min_size=3, max_size=3, unique=last - first > 2)))
        out, gone, back = (point if draw(st.booleans()) else None for point in points)
        if graph.values[value].kind == "parameter":
            out = None
        elif is_paged_gradient(graph, value):
            out = gone = back = None
        if gone is None or gone != back:
            pages.append(FlatPage(value, draw(st.sampled_from(["disk", "host"])), out, gone, back))
    return link(graph, recomputes, pages)


@pytest.mark.slow
@settings(max_examples=300)
@given(paged_steps())
def test_pages_change_no_result(linked: Linked) -> None:
    machine = Machine(linked)
    assert machine.run() == plain(linked.graph)
    assert not machine.copying
    kept = {g for _, g in linked.graph.gradients}
    kept |= {i for i, v in enumerate(linked.graph.values) if v.kind == "tangent"}
    assert set(machine.slots) <= kept


@pytest.mark.slow
@settings(max_examples=200)
@given(paged_steps())
def test_bytes_leave_at_gone_and_come_back_at_back(linked: Linked) -> None:
    account, machine = simulate(linked).device, Machine(linked)
    for at, event in enumerate(linked.events):
        saved, before = len(machine.saved), machine.bytes_held()
        machine.happen(event)
        replaying = isinstance(event, RecomputeRun) and linked.graph.operations[event.op].random
        if replaying:
            saved = saved - len(machine.saved) + 1
        if isinstance(event, PageGone) and not forward_makes(linked.graph, event.value):
            assert account.during[at] == before
            assert machine.bytes_held() == before - linked.graph.nbytes(event.value)
            if at + 1 < len(linked.events):  # what is there at the last event counts as held when the step ends
                assert account.after[at] == machine.bytes_held()
            continue
        assert account.during[at] == machine.bytes_held() + DEVICES["cpu"].generator_state * saved * replaying
        if isinstance(event, PageGone):
            assert account.after[at] == account.during[at] - linked.graph.nbytes(event.value)
            behind = linked.events[at + 1]
            assert isinstance(behind, Free)
            assert event.value in behind.values


@pytest.mark.slow
@given(paged_steps())
def test_forward_alone_pages_nothing(linked: Linked) -> None:
    machine = Machine(linked)
    machine.missing.clear()  # parameters come back at a touch
    for event in (*forward_alone(linked), *(e for e in linked.events if isinstance(e, Update))):
        assert not isinstance(event, PageOut | PageGone | PageBack | PageReady)
        machine.happen(event)
    assert [machine.read(v) for v in linked.graph.outputs] == plain(linked.graph)[0]


@pytest.mark.slow
@given(paged_steps())
def test_a_step_without_some_gradients_keeps_what_is_left_of_its_pages(linked: Linked) -> None:
    """The names of what forward makes are the same there."""
    source = linked.graph.gradients[0][0]
    less = without_gradients(linked, [linked.graph.gradients[1][0]])
    machine = Machine(less)
    ours = [machine.run()[1][0], less.graph.values[less.graph.gradients[0][0]].name]
    assert ours == [plain(linked.graph)[1][0], linked.graph.values[source].name]


@pytest.mark.slow
@given(paged_steps())
def test_time_is_that_of_the_runs_and_what_is_waited_for(linked: Linked) -> None:
    timeline = simulate(linked)
    runs = sum(linked.graph.operations[e.op].ns for e in linked.events if isinstance(e, Run | RecomputeRun))
    assert timeline.time == runs + timeline.stall
    for lane in timeline.lanes:
        assert 0 <= lane.stall <= timeline.time
        assert lane.busy >= lane.copies * linked.graph.lanes[lane.memory].latency


def chain(device: str = "cpu") -> Graph:
    """a = cos(x), b = cos(a), c = cos(b), d = cos(c) in forward; backward reads a, in its second operation."""
    kind = parse_type("f32[256]")
    values = [Value("x", kind, "input"), *(Value(name, kind, "op", at) for at, name in enumerate("abcd"))]
    values += [Value("grad.d", kind, "tangent"), Value("g", kind, "op", 4), Value("h", kind, "op", 5)]
    reads = [(0,), (1,), (2,), (3,), (5,), (6, 1)]
    writes = [1, 2, 3, 4, 6, 7]
    ops = tuple(
        Op(f"op{i}", "aten.cos", tuple(map(Ref, r)), {}, r, (w,), False, False, False, 1000)
        for i, (r, w) in enumerate(zip(reads, writes, strict=True))
    )
    lanes = {"disk": Lane(out=1024 * 10**6, back=512 * 10**6, latency=10)}
    return Graph(tuple(values), ops, 4, (4,), ((0, 7),), (), tuple(range(8)), device, lanes=lanes)


def test_the_short_form_by_hand() -> None:
    """The copy out begins when a is made, at 1000, and takes 1010 ns; b is ready at 2000, so the step waits 10 ns. The
    copy back begins when a is read and takes 2010 ns."""
    linked = link(chain(), (), [FlatPage(1)])
    copied = PageOut(1, 0, "disk"), Run(1), PageGone(1, 0, "disk"), Free((1,))
    assert linked.events[:6] == (Run(0), Free((0,)), *copied)
    assert linked.events[-5:-2] == (PageBack(1, 0, "disk"), PageReady(1, 0, "disk"), Run(5))
    timeline = simulate(linked)
    out, back = timeline.lanes
    assert (out.busy, out.stall, back.busy, back.stall) == (1010, 10, 2010, 2010)
    assert timeline.time == 6000 + 2020
    assert timeline.paged == {"disk": 1024}
    assert timeline.memories["disk"].during[0] == 0
    assert timeline.memories["disk"].during[-1] == 1024
    kept = link(chain())
    assert simulate(kept).after[kept.backward_start] - timeline.after[linked.backward_start] == 1024


def test_points_hide_the_copies() -> None:
    linked = link(chain(), (), [FlatPage(1, "disk", None, 3, 4)])
    timeline = simulate(linked)
    assert [lane.stall for lane in timeline.lanes] == [0, 1010]
    assert timeline.time == 6000 + 1010


@pytest.mark.parametrize(
    ("page", "code"),
    [
        (FlatPage(0), "R048"),
        (FlatPage(4), "R048"),
        (FlatPage(5), "R048"),
        (FlatPage(6), "R048"),
        (FlatPage(7), "R048"),  # the gradient of an input
        (FlatPage(1, "disk", 0), "R049"),
        (FlatPage(1, "disk", 3, 2), "R049"),
        (FlatPage(1, "disk", None, 3, 3), "R049"),
        (FlatPage(1, "disk", None, 3, 2), "R049"),
    ],
)
def test_what_cannot_be_paged_is_refused_with_the_reason(page: FlatPage, code: str) -> None:
    with pytest.raises(ScheduleError, match=code):
        link(chain(), (), [page])


def test_pages_without_effect_make_no_event() -> None:
    graph = chain()
    for page in (FlatPage(2), FlatPage(3), FlatPage(1, "disk", None, None, 2)):
        assert link(graph, (), [page]).events == link(graph).events, page
    again = [FlatRecompute(0, 5)]  # a is computed anew before it is read
    assert link(graph, again, [FlatPage(1)]).events == link(graph, again).events
    assert not link(graph, again, [FlatPage(1)]).paged
    twice = [FlatPage(1), FlatPage(1, "host", None, 3)]
    assert link(graph, (), twice).events == link(graph, (), twice[:1]).events


def test_a_recomputation_reads_what_was_paged() -> None:
    linked = link(chain(), [FlatRecompute(1, 5)], [FlatPage(1, "disk", None, 2)])
    kinds = [type(event) for event in linked.events]
    assert kinds.index(PageReady) < kinds.index(RecomputeRun)
    assert Machine(linked).run() == plain(linked.graph)


@pytest.mark.parametrize("read_again", [False, True])
def test_a_parameter_stays_until_a_buffer_has_taken_a_view_of_it(read_again: bool) -> None:
    kind = parse_type("f32[4]")
    values = [Value("w", kind, "parameter"), Value("b", kind, "buffer"), Value("x", kind, "input")]
    values += [Value("v", kind, "op", 0), Value("y", kind, "op", 1), Value("grad.y", kind, "tangent")]
    values += [Value("g", kind, "op", 2), Value("h", kind, "op", 3)]
    view = Op("view", "aten.view", (Ref(0), (4,)), {}, (0,), (3,), False, True, False)
    reads = [(0, 2), (5,), (6, 0) if read_again else (6,)]
    runs = (
        Op(f"op{i}", "aten.cos", tuple(map(Ref, r)), {}, r, (w,), False, False, False, 10)
        for i, (r, w) in enumerate(zip(reads, (4, 6, 7), strict=True))
    )
    graph = Graph(tuple(values), (view, *runs), 2, (4,), ((2, 7),), ((1, 3),), (0, 1, 2, 0, 4, 5, 6, 7))
    linked = link(graph, (), [FlatPage(0)])
    assert Machine(linked).run() == plain(graph)
    assert linked.events.index(PageGone(0, 0, "disk")) > linked.backward_start
