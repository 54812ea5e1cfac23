"""Saving is atomic: a reader sees the old file or the new one, and nothing is left behind."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format.reader import load
from remate_runtime.format.schedule import Instance, Schedule
from remate_runtime.format.writer import encode, save
from remate_runtime.support import files


@pytest.fixture
def schedule() -> Schedule:
    return load(Path(__file__).parents[2] / "schema/corpus/valid/minimal.json")


def test_save_and_load(tmp_path: Path, schedule: Schedule) -> None:
    path = tmp_path / "s.json"
    schedule.save(str(path))
    assert path.read_bytes() == encode(schedule)
    assert load(path) == schedule
    assert os.listdir(tmp_path) == ["s.json"]


def test_the_mode_of_an_existing_file_stays(tmp_path: Path, schedule: Schedule) -> None:
    path = tmp_path / "s.json"
    path.write_text("old")
    path.chmod(0o640)
    save(schedule, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path, schedule: Schedule) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    save(schedule, link)
    assert link.is_symlink()
    assert load(target) == schedule


@pytest.mark.parametrize("broken", ["fsync", "replace", "write"])
def test_a_failure_leaves_the_old_file(
    tmp_path: Path, schedule: Schedule, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "s.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((files, "_written", fail) if broken == "write" else (os, broken, fail)))
    with pytest.raises(ScheduleError, match=r"R000.*No space left"):
        save(schedule, path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_folder_that_does_not_exist(tmp_path: Path, schedule: Schedule) -> None:
    with pytest.raises(ScheduleError, match="R000"):
        save(schedule, tmp_path / "no" / "s.json")


def test_what_load_would_refuse_is_not_written(tmp_path: Path, schedule: Schedule) -> None:
    path = tmp_path / "s.json"
    with pytest.raises(ScheduleError, match="R014"):
        save(replace(schedule, program=(Instance(id="../x", block="All"),)), path)
    assert not path.exists()


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    """`-o /dev/stdout`, a pipe: renaming onto it would replace it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_atomically(pipe, b"text")
        assert os.read(reading, 16) == b"text"
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_everything_that_writes_writes_whole_files() -> None:
    """No module of the packages opens a file for writing directly."""
    root = Path(__file__).parents[2]
    writers = [
        str(path.relative_to(root))
        for folder in ("remate", "runtime")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\.write_text\(|\.write_bytes\(|mkstemp|open\([^)\n]*[\"'][wax]b?[\"']", path.read_text("utf-8"))
    ]
    assert writers == ["runtime/remate_runtime/support/files.py"]
