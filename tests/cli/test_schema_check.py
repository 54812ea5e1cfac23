"""`check` also validates files against the published JSON Schema, and reports where schema and reader disagree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remate.schedule_tools import schema_check, schema_file

from .changes import change

Remate = Callable[..., Any]


@pytest.fixture
def stricter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A schema that requires more than the reader."""
    schema = schema_file.load_schema()
    schema["properties"]["name"] = {"enum": ["another"]}
    schema["$defs"]["model"]["required"].append("note")
    schema["properties"]["solve"] = {"properties": {"strategy": {"pattern": "^x"}, "budget": {"type": "string"}}}
    monkeypatch.setattr(schema_check, "load_schema", lambda: schema)
    schema_check._validator.cache_clear()
    yield
    schema_check._validator.cache_clear()


@pytest.mark.usefixtures("stricter")
def test_disagreement_is_told_with_its_place(remate: Remate) -> None:
    outcome = remate("check", "mlp.json", "--format", "json")
    assert outcome.status == 1
    faults = json.loads(outcome.out)["faults"]
    assert {(fault["code"], fault["pointer"]) for fault in faults} == {
        ("R013", "/name"),
        ("R011", "/model"),
        ("R014", "/solve/strategy"),
        ("R012", "/solve/budget"),
    }
    text = Path("mlp.json").read_text().split("\n")
    (name,) = (fault for fault in faults if fault["pointer"] == "/name")
    assert text[name["line"] - 1][name["column"] - 1 :] == '"mlp",'
    assert "the published JSON Schema refuses it" in name["message"]


@pytest.mark.usefixtures("stricter")
def test_the_reader_comes_first(remate: Remate) -> None:
    """One fault for each cause."""
    change("mlp.json", ('"budget": 4720000', '"budget": "4720000"'))
    faults = json.loads(remate("check", "mlp.json", "--format", "json").out)["faults"]
    assert [(fault["code"], fault["pointer"]) for fault in faults] == [("R012", "/solve/budget")]


@pytest.mark.usefixtures("stricter")
def test_a_large_file_is_not_held_up(remate: Remate) -> None:
    change("mlp.json", ("{\n", "{" + " " * schema_check.MOST_BYTES + "\n"))
    assert remate("check", "mlp.json").status == 0
