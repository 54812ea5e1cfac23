"""Hints for common input that JSON or the format does not accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from remate_runtime.errors import ScheduleError
from remate_runtime.format import decode, load

MINIMAL = Path(__file__).parents[2] / "schema/corpus/valid/minimal.json"


def refused(before: str, after: str) -> ScheduleError:
    text = MINIMAL.read_text("utf-8")
    assert before in text
    with pytest.raises(ScheduleError) as caught:
        decode(text.replace(before, after, 1))
    return caught.value


@pytest.mark.parametrize(
    ("written", "number"), [("20MiB", 20 << 20), ("1.5 GiB", 3 << 29), ("80kB", 80_000), ("7B", 7)]
)
def test_a_size_in_words(written: str, number: int) -> None:
    fault = refused('"budget": 80', f'"budget": "{written}"')
    assert (fault.code, fault.where) == ("R012", "/solve/budget")
    assert fault.hint == f"sizes are numbers of bytes: {number}"
    assert not refused('"budget": 80', '"budget": "much"').hint


@pytest.mark.parametrize("comment", ["// first", "/* first */", "# first"])
def test_a_comment(comment: str) -> None:
    fault = refused('"version": 1,', f'{comment}\n  "version": 1,')
    assert fault.code == "R002"
    assert "`note`" in fault.hint


def test_the_file_is_known(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ScheduleError) as caught:
        load(tmp_path / "bad.json")
    assert caught.value.file == str(tmp_path / "bad.json")
