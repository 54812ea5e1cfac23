"""The tree of parts in a file: checked, kept, and dropped when the plan is edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.edit import Editor
from remate.schedule_tools.schema_check import schema_faults
from remate_runtime.errors import ScheduleError
from remate_runtime.format import decode, encode

SAMPLE = Path(__file__).parents[2] / "schema/corpus/valid/nested.json"
PART = {"part": "", "level": 0, "count": 1, "operations": 4, "plans": 0, "solver": "level program", "time": 12}


def with_parts(*parts: dict[str, Any]) -> str:
    tree = json.loads(SAMPLE.read_bytes())
    tree["solve"]["parts"] = list(parts)
    return json.dumps(tree)


def test_parts_are_read_and_written_one_to_a_line() -> None:
    text = with_parts(PART, {**PART, "part": "h.0 to h.3", "level": 1, "count": 4})
    assert schema_faults(text) == []
    schedule = decode(text)
    assert [part.count for part in schedule.solve.parts] == [1, 4]
    written = encode(schedule).decode()
    assert decode(written) == schedule
    assert sum('"level": ' in line for line in written.splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "code", "where"),
    [
        ({"time": -1}, "R013", "/solve/parts/0/time"),
        ({"count": 1 << 64}, "R013", "/solve/parts/0/count"),
        ({"solver": "x" * (1 << 17)}, "R073", "/solve/parts/0/solver"),
        ({"depth": 1}, "R010", "/solve/parts/0/depth"),
    ],
)
def test_what_is_no_part_is_refused_with_its_place(change: dict[str, Any], code: str, where: str) -> None:
    text = with_parts({**PART, **change})
    with pytest.raises(ScheduleError) as caught:
        decode(text)
    assert caught.value.code == code
    assert caught.value.where == where
    assert schema_faults(text)


def test_an_edited_plan_has_no_tree() -> None:
    opened = analyse(decode(with_parts(PART)))
    assert opened.schedule.solve.parts
    assert Editor(opened).result().schedule.solve.parts == ()
