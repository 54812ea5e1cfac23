"""`tools/versions.py`: which versions of PyTorch it tests, and how it records results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import versions


def test_the_newest_patch_of_each_supported_minor_version() -> None:
    published = ["2.15.0", "2.14.1", "2.14.0", "2.13.0+cpu", "2.13.0", "2.11.0", "2.10.1", "1.13.1", "2.9.0rc1"]
    assert versions.newest_patches(published) == ["2.11.0", "2.13.0", "2.14.1", "2.15.0"]


def test_a_result_replaces_that_of_the_same_version_and_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "RESULTS", tmp_path / "versions.jsonl")
    for torch, room, passed in (("2.14.1", "dims", 1), ("2.9.0", "dims", 2), ("2.14.1", "dims", 3)):
        record = {"torch": torch, "room": room, "passed": passed}
        versions.write([*versions.kept(record), record])
    lines = versions.RESULTS.read_text(encoding="utf-8").splitlines()
    assert [(entry["torch"], entry["passed"]) for entry in map(json.loads, lines)] == [("2.9.0", 2), ("2.14.1", 3)]
