"""A schedule with named sizes, at one of them: a plain, legal schedule with the step's fingerprint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remate_runtime.errors import BindError, ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format import Operation, Schedule, at_size, check_fingerprint, decode, encode, fingerprint, load
from remate_runtime.link import link, simulate

from .schedules import sized_schedules

VALID = Path(__file__).parents[2] / "schema/corpus/valid"
SAMPLE = VALID / "dims.json"


@pytest.fixture
def sized() -> Schedule:
    return load(SAMPLE)


def changed(*edits: tuple[str, str]) -> Schedule:
    text = SAMPLE.read_text()
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return decode(text)


def test_numbers_stand_for_names(sized: Schedule) -> None:
    plain = at_size(sized, {"b": 3, "t": 10})
    assert plain.model.dims == {}
    assert plain.model.inputs == {"args": [{"tensor": "f32[3,10,4]", "name": "x"}]}
    assert plain.model.outputs["dict"]["length"] == {"literal": 10}
    block = plain.blocks["All"]
    assert block.inputs["x"] == "f32[3,10,4]"
    half = next(op for op in block.forward if op.id == "half")
    assert (list(half.args), half.out) == (["%rows", 1, 0, 5], "f32[3,5,3]{30,3,1}")
    mean = block.forward[-1]
    assert mean.args[1] == 2 / 90
    assert next(op for op in block.forward if op.id == "mm").workspace == 48
    assert "{" not in next(op for op in block.forward if op.id == "mm").out
    assert decode(encode(plain)) == plain
    check_fingerprint(plain)


@pytest.mark.parametrize("dims", [{"b": b, "t": t} for b in (2, 7, 32) for t in (4, 18, 64)])
def test_every_size_is_a_legal_step(sized: Schedule, dims: dict[str, int]) -> None:
    expanded = expand(at_size(sized, dims))
    b, t = dims["b"], dims["t"]
    held = 2 * 12 * b * t + 2 * 4  # grad.half and mm, the loss and its gradient
    assert simulate(link(expanded.graph, expanded.recomputes)).peak == held + 16 * b  # and mm's workspace


@pytest.mark.slow
@given(sized_schedules, st.integers(2, 32), st.integers(1, 16))
@settings(max_examples=60)
def test_what_the_reader_accepts_is_a_plain_file_at_every_size(schedule: Schedule, b: int, t: int) -> None:
    plain = at_size(decode(encode(schedule)), {"b": b, "t": 4 * t})
    assert decode(encode(plain)) == plain
    assert not re.search(r"[\[,{][a-z]|size", "".join(op.out for op in operations(plain) if isinstance(op.out, str)))


def operations(schedule: Schedule) -> Iterator[Operation]:
    return (op for block in schedule.blocks.values() for op in block.forward)


def test_what_is_left_out_is_as_planned(sized: Schedule) -> None:
    planned = at_size(sized)
    assert planned == at_size(sized, {"b": 8, "t": 16}) == at_size(sized, {"t": 16})
    assert planned.solve == sized.solve
    assert expand(sized) == expand(planned)


def test_a_schedule_of_one_size_is_its_own() -> None:
    plain = load(VALID / "minimal.json")
    assert at_size(plain) is plain


def test_the_bound_is_of_the_planned_size_alone(sized: Schedule) -> None:
    proven = replace(sized, solve=replace(sized.solve, lower_bound=10_000, gap=0.3))
    assert at_size(proven).solve == proven.solve
    other = at_size(proven, {"b": 2}).solve
    assert (other.lower_bound, other.gap) == (None, None)


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"b": 1}, "b is 1, the schedule is for 2 to 32"),
        ({"b": 33}, "b is 33, the schedule is for 2 to 32"),
        ({"t": 17}, "t is 17, the schedule is for 4 to 64 in steps of 2"),
        ({"s": 4}, "no size named 's'\n  it has b, t"),
    ],
)
def test_other_sizes_are_refused(sized: Schedule, dims: dict[str, int], said: str) -> None:
    with pytest.raises(BindError, match=said):
        at_size(sized, dims)


def test_a_schedule_of_one_size_has_no_names() -> None:
    with pytest.raises(BindError, match="no size named 'b'\n  it is for one size"):
        at_size(load(VALID / "minimal.json"), {"b": 2})


def test_a_step_that_was_edited_is_noticed_at_every_size() -> None:
    edited = changed(('["%sum", {"float": "2/(3*b*t)"}]', '["%sum", {"float": "2/(5*b*t)"}]'))
    for dims in ({}, {"b": 2, "t": 4}):
        with pytest.raises(ScheduleError, match="R083"):
            check_fingerprint(at_size(edited, dims))


def test_the_fingerprint_covers_the_range_and_not_the_planned_size(sized: Schedule) -> None:
    assert fingerprint(changed(('"planned": 8', '"planned": 9'))) == fingerprint(sized)
    for edit in (('"max": 32', '"max": 33'), ('"min": 2,', '"min": 3,'), ('"multiple": 2', '"multiple": 4')):
        assert fingerprint(changed(edit)) != fingerprint(sized)


def test_a_fault_at_a_size_has_its_place(sized: Schedule) -> None:
    """The reader checks the ends of the range and the planned size. Expressions may still be invalid at other sizes."""
    wavy = changed(('"%t"], "out": "f32[b*t,3]"', '"%t"], "out": "f32[t^2-27*t+181]"'))
    with pytest.raises(ScheduleError) as caught:
        at_size(wavy, {"t": 14})
    assert (caught.value.code, caught.value.where) == ("R025", "/blocks/All/forward/2")


def test_containers_may_be_called_like_leaves() -> None:
    """`tensor`, `literal` and `size` may also be keys of dicts."""
    leaf = '{"tensor": "f32[b,t,4]", "name": "x"}'
    inside = '{"dict": {"literal": {"dict": {"tensor": ' + leaf + ', "size": {"literal": {"size": "t"}}}}}}'
    result = at_size(changed(("[" + leaf + "]", "[" + inside + "]")), {"b": 3, "t": 10}).model.inputs
    assert result == {"args": [json.loads(inside.replace("b,t", "3,10").replace('{"size": "t"}', "10"))]}
