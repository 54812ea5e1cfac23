"""Look-ups over executions: use of recomputations, live ranges, later points, maxima."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remate.schedule_tools.analysis import Analysis
from remate.schedule_tools.late import needed_before
from remate.schedule_tools.ranges import Maxima
from remate.schedule_tools.steps import StepPositions, recompute_positions, useful
from remate_runtime.flat_step.graph import FlatRecompute
from remate_runtime.link.events import Free, RecomputeRun, Run
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

from .test_random_edits import scheduled


@pytest.mark.slow
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_recomputes_that_are_of_no_use_can_go(seed: int) -> None:
    opened = scheduled(seed)
    keep = useful(opened.linked)
    chosen = [recompute for recompute, use in zip(opened.expanded.recomputes, keep, strict=True) if use]
    linked = link(opened.graph, chosen)
    assert all(useful(linked))
    assert simulate(linked).time <= opened.timeline.time
    for at, use in zip(recompute_positions(opened.linked), keep, strict=True):
        recompute, then = opened.linked.events[at : at + 2]
        assert isinstance(recompute, RecomputeRun)
        writes = {v for v in opened.graph.operations[recompute.op].writes if v is not None}
        if use:
            assert not isinstance(then, Free) or not writes <= set(then.values)


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_a_useful_recompute_moved_to_where_it_is_needed_runs_as_often(seed: int) -> None:
    opened = scheduled(seed)
    need, keep = needed_before(opened), useful(opened.linked)
    for k, recompute in enumerate(opened.expanded.recomputes):
        assert need[k] >= recompute.before or not keep[k]
        if keep[k] and need[k] > recompute.before:
            moved = [
                FlatRecompute(r.op, need[k] if j == k else r.before) for j, r in enumerate(opened.expanded.recomputes)
            ]
            linked = link(opened.graph, sorted(moved, key=lambda r: r.before))
            assert simulate(linked).time == opened.timeline.time


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 30))
def test_spans_add_up_to_what_the_simulator_holds(seed: int) -> None:
    opened: Analysis = scheduled(seed)
    spans = [s for group in StepPositions(opened).spans.values() for s in group]
    held = {(s.allocation.value, s.allocation.birth) for s in spans}
    account = opened.timeline.device
    assert held == {(a.value, a.birth) for a in account.allocations if a.value is not None}
    states = [a for a in account.allocations if a.value is None]
    for at, during in enumerate(account.during):
        event = opened.linked.events[at]
        workspace = opened.graph.operations[event.op].workspace if isinstance(event, Run | RecomputeRun) else 0
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
