"""Released files stay readable, and a change of the format is noticed before its release."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.migrate import migrate
from remate_runtime.format.fingerprints import check_fingerprint
from remate_runtime.format.schedule import REVISION, VERSION
from remate_runtime.format.writer import encode

from .compatibility import Described, needed, of_schema, of_types

FIXTURES = Path(__file__).parent / "fixtures"
SCHEMA = Path(__file__).parents[2] / "schema"
FILES = sorted(path for path in FIXTURES.glob("v*/*.json") if path.name != "expected.json")


def test_every_version_has_fixtures(request: pytest.FixtureRequest) -> None:
    for version in range(1, VERSION + 1):
        folder = FIXTURES / f"v{version}"
        files = [path for path in FILES if path.parent == folder]
        if version == VERSION and request.config.getoption("--update-golden"):
            expected = {path.stem: figures(path) for path in files}
            (folder / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
        assert {path.stem for path in files} == json.loads((folder / "expected.json").read_text()).keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_frozen_files_mean_what_they_meant(path: Path) -> None:
    """Never regenerate a fixture of a released version: add a new one."""
    recorded = json.loads((path.parent / "expected.json").read_text())[path.stem]
    assert figures(path) == recorded
    if path.parent.name == f"v{VERSION}":
        assert encode(migrate(path.read_bytes()).schedule) == path.read_bytes()


def figures(path: Path) -> dict[str, int]:
    migrated = migrate(path.read_bytes())
    assert path.parent.name == f"v{migrated.version}"
    check_fingerprint(migrated.schedule)
    opened = analyse(migrated.schedule)
    return {
        "operations": len(opened.graph.operations),
        "values": len(opened.graph.values),
        "recomputes": len(opened.expanded.recomputes),
        "steps": len(opened.timeline.during),
        "peak": opened.timeline.peak,
        "time": opened.timeline.time,
        "baseline_peak": opened.baseline.peak,
    }


@pytest.mark.parametrize("part", ["types", "schema"])
def test_a_change_of_the_format_raises_its_number(request: pytest.FixtureRequest, part: str) -> None:
    path = SCHEMA / f"fields-{VERSION}.json"
    frozen: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"version": VERSION, "revisions": []}
    now = of_types() if part == "types" else of_schema()
    entries: list[dict[str, Any]] = frozen["revisions"]
    if request.config.getoption("--update-golden"):
        if not entries or entries[-1]["revision"] != REVISION:
            entries.append({"revision": REVISION})
        entries[-1][part] = now
        path.write_text(json.dumps(frozen, indent=1) + "\n")
    problem = complaint(entries[-1]["revision"], entries[-1][part], now)
    assert not problem, problem


def complaint(revision: int, old: Described, new: Described) -> str:
    kind, reasons = needed(old, new)
    if not kind:
        return "" if revision == REVISION else f"REVISION is {REVISION}, frozen is {revision}, and nothing was added"
    said = "; ".join(reasons)
    freeze = f"then `pytest {Path(__file__).name} --update-golden` freezes the fields and commit schema/fields-*.json"
    if kind == "revision" and revision + 1 == REVISION:
        return f"revision {REVISION} is not frozen yet ({said}): {freeze}"
    if kind == "revision":
        return f"{said}: a reader of revision {revision} would refuse it. Raise REVISION to {revision + 1} in format.py, {freeze}"
    return (
        f"{said}: files of version {VERSION} would be read wrongly or not at all. Raise VERSION to {VERSION + 1} in "
        f"format.py, set REVISION to 0, add the step {VERSION} to remate.migrate.STEPS, publish a schema of its own, "
        f"add fixtures/v{VERSION + 1}; {freeze}"
    )


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda d: None, ""),
        (lambda d: d["Recompute"].update(offload={"type": "str", "required": False}), "revision"),
        (lambda d: d.update(Merge={"id": {"type": "str", "required": True}}), "revision"),
        (lambda d: d["Recompute"]["before"].update(required=False), "revision"),
        (lambda d: d["Recompute"].update(offload={"type": "str", "required": True}), "version"),
        (lambda d: d["Recompute"]["note"].update(required=True), "version"),
        (lambda d: d["Recompute"]["note"].update(type="int"), "version"),
        (lambda d: d["Recompute"].pop("note"), "version"),
        (lambda d: d.pop("Recompute"), "version"),
    ],
)
def test_kinds_of_change(change: Any, kind: str) -> None:
    old, new = of_types(), copy.deepcopy(of_types())
    change(new)
    assert needed(old, new)[0] == kind
    if kind:
        assert f"Raise {kind.upper()}" in complaint(REVISION, old, new)


def test_types_and_schema_have_the_same_fields() -> None:
    types, schema = of_types(), of_schema()
    for name, fields in types.items():
        assert fields.keys() == schema[name.lower()].keys()
        required = {field for field, about in fields.items() if about["required"]}
        stated = {field for field, about in schema[name.lower()].items() if about["required"]}
        assert required <= stated, name
        assert stated - required <= {"outputs"}, name  # its default, no tree at all, is refused in other words
