"""Look-ups over executions: use of reruns, life spans, later points, maxima."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from remate.inspect.analysis import Analysis
from remate.inspect.late import needed_before
from remate.inspect.ranges import Maxima
from remate.inspect.steps import Steps, rerun_positions, useful
from remate_runtime.link.events import Free, Rerun, Run
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate
from remate_runtime.step.graph import FlatRerun

from .test_random_edits import scheduled


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_reruns_that_are_of_no_use_can_go(seed: int) -> None:
    opened = scheduled(seed)
    keep = useful(opened.linked)
    chosen = [rerun for rerun, use in zip(opened.expanded.reruns, keep, strict=True) if use]
    linked = link(opened.graph, chosen)
    assert all(useful(linked))
    assert simulate(linked).time <= opened.timeline.time
    for at, use in zip(rerun_positions(opened.linked), keep, strict=True):
        rerun, then = opened.linked.events[at : at + 2]
        assert isinstance(rerun, Rerun)
        writes = {v for v in opened.graph.operations[rerun.op].writes if v is not None}
        if use:
            assert not isinstance(then, Free) or not writes <= set(then.values)


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_a_useful_rerun_moved_to_where_it_is_needed_runs_as_often(seed: int) -> None:
    opened = scheduled(seed)
    need, keep = needed_before(opened), useful(opened.linked)
    for k, rerun in enumerate(opened.expanded.reruns):
        assert need[k] >= rerun.before or not keep[k]
        if keep[k] and need[k] > rerun.before:
            moved = [FlatRerun(r.op, need[k] if j == k else r.before) for j, r in enumerate(opened.expanded.reruns)]
            linked = link(opened.graph, sorted(moved, key=lambda r: r.before))
            assert simulate(linked).time == opened.timeline.time


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 30))
def test_spans_add_up_to_what_the_simulator_holds(seed: int) -> None:
    opened: Analysis = scheduled(seed)
    spans = [s for group in Steps(opened).spans.values() for s in group]
    held = {(s.allocation.value, s.allocation.birth) for s in spans}
    account = opened.timeline.device
    assert held == {(a.value, a.birth) for a in account.allocations if a.value is not None}
    states = [a for a in account.allocations if a.value is None]
    for at, during in enumerate(account.during):
        event = opened.linked.events[at]
        workspace = opened.graph.operations[event.op].workspace if isinstance(event, Run | Rerun) else 0
        workspace += sum(a.nbytes for a in states if a.birth <= at < a.death)
        inside = {id(s.allocation): s.allocation.nbytes for s in spans if s.start <= at <= s.end}
        assert sum(inside.values()) + workspace == during


def test_maxima() -> None:
    draw = random.Random(0)
    for length in (1, 2, 3, 7, 8, 33):
        numbers = [draw.randrange(100) for _ in range(length)]
        maxima = Maxima(numbers)
        for first in range(length):
            for last in range(first, length):
                assert maxima.within(first, last) == max(numbers[first : last + 1])
