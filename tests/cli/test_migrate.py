"""`remate migrate`: current files, newer files, and migrations of older ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate.schedule_tools.migrate import STEPS, upgrade, version_of
from remate_runtime.errors import ScheduleError
from remate_runtime.format.reader import decode
from remate_runtime.format.schedule import VERSION

from .changes import change

Remate = Callable[..., Any]


def test_current(remate: Remate) -> None:
    assert remate("migrate", "mlp.json") == (0, "mlp.json: version 1, already current\n", "")
    assert remate("migrate", "mlp.json", "--check") == (0, "mlp.json: version 1, current\n", "")
    told = remate("migrate", "mlp.json", "-o", "new.json")
    assert told == (0, "mlp.json: version 1, already current\nwrote new.json\n", "")
    assert Path("new.json").read_text() == Path("mlp.json").read_text()


def test_newer(remate: Remate) -> None:
    change("mlp.json", ('"version": 1', '"version": 2'))
    for argv in ([], ["--check"]):
        outcome = remate("migrate", "mlp.json", *argv)
        assert outcome.status == 4
        assert "version 2; this reader knows versions up to 1" in outcome.err


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"format": "remate.schedule", "version": true}', "\xff"])
def test_not_a_schedule(remate: Remate, text: str) -> None:
    Path("s.json").write_text(text, encoding="latin-1")
    assert remate("migrate", "s.json").status == 1
    assert version_of(Path("s.json").read_bytes()) is None


def test_there_is_a_way_from_every_version() -> None:
    assert set(STEPS) == set(range(1, VERSION))


def test_upgrade_walks_version_by_version(remate: Remate) -> None:
    """Two invented older versions: one has other names of fields, the other no `solve.cost`."""
    del remate
    now = json.loads(Path("mlp.json").read_text())
    oldest = {**now, "version": 1, "tasks": now["program"]}
    del oldest["program"]
    oldest["solve"] = {k: v for k, v in now["solve"].items() if k != "cost"}
    kept = json.dumps(oldest)

    def first(tree: dict[str, Any]) -> dict[str, Any]:
        return {("program" if k == "tasks" else k): v for k, v in tree.items()}

    def second(tree: dict[str, Any]) -> dict[str, Any]:
        return {**tree, "solve": {**tree["solve"], "cost": "cpu"}}

    result = upgrade(oldest, {1: first, 2: second}, 3)
    assert result["version"] == 3
    assert json.dumps(oldest) == kept
    assert decode(json.dumps({**result, "version": 1})) == decode(json.dumps(now))
    with pytest.raises(ScheduleError, match="version 2 is not read any more"):
        upgrade(oldest, {1: first}, 3)
