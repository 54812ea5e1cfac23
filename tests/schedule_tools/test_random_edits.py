"""After random edits, a file is valid, does what was requested, and its figures are those of the simulator."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remate.block_templates.folding import fold
from remate.partition.partitioning import partition
from remate.schedule_tools.analysis import Analysis, analyse, open_text
from remate.schedule_tools.check import promises
from remate.schedule_tools.diff import compare
from remate.schedule_tools.edit import EditError, Editor
from remate.schedule_tools.lint import lint
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import held_outside, stays
from remate_runtime.format.fingerprints import check_fingerprint, fingerprint
from remate_runtime.format.writer import encode

from ..planner.folding import random_recomputes, random_step, schedule_of
from ..planner.synthetic import layers
from .hand_edits import by_hand


def scheduled(seed: int) -> Analysis:
    """A schedule with plans: a stack of layers, or a step with random wiring."""
    draw = random.Random(seed)
    captured = layers(draw.randint(2, 4)) if draw.random() < 0.6 else random_step(seed, draw.randint(5, 40))
    hierarchy = partition(captured)
    graph = hierarchy.captured.graph
    schedule = schedule_of(fold(hierarchy.captured, random_recomputes(graph, seed, draw.randint(0, 12)), hierarchy))
    schedule = replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))
    return analyse(replace(schedule, solve=Editor(analyse(schedule)).result().schedule.solve))


def decided(opened: Analysis) -> Counter[tuple[str, str]]:
    operations = opened.graph.operations
    return Counter((operations[r.op].id, operations[r.before].id) for r in opened.expanded.recomputes)


def verified(opened: Analysis) -> None:
    """Written text reads back, and keeps its figures and its step."""
    again = open_text(encode(opened.schedule))
    assert encode(again.schedule) == encode(opened.schedule)
    assert again.timeline == opened.timeline
    assert not [fault for fault in promises(again) if fault.code == "R081"]
    check_fingerprint(again.schedule)


@pytest.mark.slow
@settings(max_examples=16)
@given(seed=st.integers(0, 1 << 30))
def test_commands(seed: int) -> None:
    draw, opened, refused = random.Random(seed), scheduled(seed), []
    for _ in range(4):
        editor, before = Editor(opened), decided(opened)
        operations, backward_start = opened.graph.operations, opened.graph.backward_start
        action = draw.choice(["keep", "recompute", "plan", "page"])
        try:
            if action == "keep" and before:
                name = draw.choice(sorted(before))[0]
                editor.keep(name)
                wanted = Counter({pair: n for pair, n in before.items() if pair[0] != name})
            elif action == "recompute" and backward_start < len(operations):
                able = [op.id for op in operations[:backward_start] if not op.view]
                name, point = draw.choice(able), operations[draw.randrange(backward_start, len(operations))].id
                editor.recompute([name], point)
                wanted = before + Counter([(name, point)])
            elif action == "page":
                held = held_outside(opened.graph)
                able = [
                    op.id
                    for op in operations[:backward_start]
                    if all(v is None or not stays(opened.graph, v, held) for v in op.writes)
                ]
                editor.page([draw.choice(able)], draw.choice(["disk", "host"]))
                wanted = None
            else:
                place = draw.choice(opened.expanded.places)
                plan = draw.choice(["baseline", *place.block.plans])
                editor.plan(place.id, plan)
                wanted = None
        except EditError as error:
            refused.append(str(error))
            continue
        edited = editor.result()
        if wanted is not None:
            assert decided(edited) == wanted
            assert (before == wanted) == (not compare(opened, edited).decisions)
        assert edited.schedule.solve.stopped_by == "edited"
        verified(edited)
        opened = edited
    assert all("already" in why or "--all" in why for why in refused)


@settings(max_examples=16)
@given(seed=st.integers(0, 1 << 30))
def test_edits_by_hand(seed: int) -> None:
    """Deleted, inserted, moved and reordered entries are legal, or refused with a code."""
    draw, opened = random.Random(seed), scheduled(seed)
    refused: set[str] = set()
    for _ in range(4):
        schedule = by_hand(opened.schedule, draw)
        try:
            edited = Editor(analyse(schedule)).result()
        except ScheduleError as error:
            refused |= {fault.code for fault in error.faults}
            continue
        changes = compare(opened, edited)
        assert changes.equal == (opened.schedule == edited.schedule)
        assert changes.equal or changes.decisions or changes.plans or changes.toplevel or changes.solve
        assert not changes.graph
        verified(edited)
        lint(edited, "s.json")
        opened = edited
    assert refused <= {"R042", "R043", "R045", "R047", "R048", "R049"}


@pytest.mark.parametrize("seed", range(3))
def test_keeping_an_instance_keeps_all_of_it(seed: int) -> None:
    opened = scheduled(seed)
    for place in opened.expanded.places:
        inside = {opened.graph.operations[i].id for i in place.forward}
        before = decided(opened)
        editor = Editor(opened, everywhere=False)
        try:
            editor.keep(place.id)
        except EditError:
            continue
        edited = editor.result()
        assert decided(edited) == Counter({pair: n for pair, n in before.items() if pair[0] not in inside})
