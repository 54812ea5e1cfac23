"""What editors get from the JSON Schema: hover text for every field, and a name for `$schema`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from remate.schedule_tools.schema_file import NAME, SCHEMA_URL, load_schema

ROOT = Path(__file__).parents[2]


def fields(node: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry of every `properties` in the schema."""
    if isinstance(node, list):
        for at, item in enumerate(node):
            yield from fields(item, f"{where}/{at}")
    if not isinstance(node, dict):
        return
    for key, inside in node.items():
        if key in ("properties", "$defs"):
            for name, entry in inside.items():
                if key == "properties" and not where.endswith(("/if", "/then/properties")):
                    yield f"{where}/{key}/{name}", entry
                yield from fields(entry, f"{where}/{key}/{name}")
        else:
            yield from fields(inside, f"{where}/{key}")


def described(schema: dict[str, Any], entry: dict[str, Any]) -> bool:
    if entry.get("description"):
        return True
    reference = entry.get("$ref", "")
    return reference.startswith("#/$defs/") and described(schema, schema["$defs"][reference.removeprefix("#/$defs/")])


def narrows(where: str) -> bool:
    """A condition on a field that is described elsewhere."""
    return "/if/" in where or "/allOf/" in where


def test_every_field_has_hover_text() -> None:
    schema = load_schema()
    results = [(where, entry) for where, entry in fields(schema) if not narrows(where)]
    assert len(results) > 70
    assert [where for where, entry in results if not described(schema, entry)] == []


def test_files_state_the_published_name() -> None:
    schema = load_schema()
    assert schema["$id"] == SCHEMA_URL == NAME
    assert f"schedule-{schema['properties']['version']['const']}.schema.json" == SCHEMA_URL
    for path in sorted((ROOT / "examples").glob("*.json")):
        if path.name != NAME:
            assert json.loads(path.read_text())["$schema"] == SCHEMA_URL


def test_editors_find_the_schema_of_the_examples() -> None:
    """Editors resolve `$schema` beside the file."""
    assert (ROOT / "examples" / SCHEMA_URL).read_bytes() == (ROOT / "schema" / NAME).read_bytes()


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())
