"""The corpus decides what a reader accepts: the JSON Schema, the reader and `expand` must agree with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from remate.schedule_tools.analysis import analyse, open_text
from remate.schedule_tools.check import findings
from remate.schedule_tools.schema_check import schema_faults
from remate.schedule_tools.schema_file import load_schema
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.codes import CODES
from remate_runtime.format.positions import locate
from remate_runtime.format.reader import decode

SCHEMA = Path(__file__).parents[2] / "schema"
VALID = sorted((SCHEMA / "corpus/valid").glob("*.json"))
MANIFEST: list[dict[str, Any]] = json.loads((SCHEMA / "corpus/manifest.json").read_text())
# these need something beside the file: a path, 64 MiB, a live model or the installed operators
NOT_IN_THE_CORPUS = {"R000", "R070", "R082"}
# shape and literals belong to the schema; what it cannot say is listed file by file in the manifest
validator = Draft202012Validator(load_schema())


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid_files_pass_every_stage(path: Path) -> None:
    text = path.read_text()
    validator.validate(json.loads(text))
    opened = open_text(path.read_bytes())
    assert findings(opened, text) == []
    assert schema_faults(text) == []


@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"][:-5])
def test_invalid_files_give_exactly_their_faults(entry: dict[str, Any]) -> None:
    data = (SCHEMA / "corpus/invalid" / entry["file"]).read_bytes()
    stage, faults = outcome(data)
    if entry["stage"] == "bind":
        faults, stage = bind_fault(data), "bind"
    results = [{"code": f.code, "where": f.where, "line": f.line, "column": f.column} for f in faults]
    assert results == entry["faults"]
    assert stage == entry["stage"]
    for fault in faults:
        assert fault.message
        assert fault.code in str(fault)


@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"][:-5])
def test_the_json_schema_agrees(entry: dict[str, Any]) -> None:
    data = (SCHEMA / "corpus/invalid" / entry["file"]).read_bytes()
    try:
        tree = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        assert entry["schema"] == "not JSON"
        return
    assert ("accepts" if validator.is_valid(tree) else "refuses") == entry["schema"]
    if entry["stage"] != "read":
        assert entry["schema"] == "accepts", "what the reader accepts, the schema must accept"
        assert schema_faults(data.decode()) == []


def test_manifest_and_folder_agree() -> None:
    files = {path.name for path in (SCHEMA / "corpus/invalid").glob("*.json")}
    assert {entry["file"] for entry in MANIFEST} == files
    assert len(MANIFEST) == len(files)


def test_every_code_is_documented_and_in_the_corpus() -> None:
    documented = dict(re.findall(r"^### (R\d{3}) (.+)$", (SCHEMA / "errors.md").read_text(), re.MULTILINE))
    assert documented == CODES
    used = {fault["code"] for entry in MANIFEST for fault in entry["faults"]}
    assert used == CODES.keys() - NOT_IN_THE_CORPUS


def outcome(data: bytes) -> tuple[str, list[ScheduleError]]:
    """How far a file is processed, and the faults that stop it."""
    try:
        schedule = decode(data)
    except ScheduleError as error:
        return "read", list(error.faults)
    try:
        analyse(schedule)
    except ScheduleError as error:
        return "expand", locate(data.decode(), error.faults)
    return "check", findings(open_text(data), data.decode())


def bind_fault(data: bytes) -> list[ScheduleError]:
    from remate_runtime.operator_calls import operators

    schedule = decode(data)
    expanded = expand(schedule)
    with pytest.raises(ScheduleError) as caught:
        operators(expanded.graph, expanded.where, schedule.namespaces)
    return locate(data.decode(), caught.value.faults)


def _refuse(word: str) -> None:
    raise ValueError(word)
