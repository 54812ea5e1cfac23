"""Statements are distinguished by their key: reader, JSON Schema and types know the same kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remate.schedule_tools.schema_file import load_schema
from remate_runtime.errors import ScheduleError
from remate_runtime.format import decode
from remate_runtime.format.schedule import STATEMENTS, Page, Recompute, Split

SAMPLE = Path(__file__).parents[2] / "schema/corpus/valid/nested.json"


def refused(statement: Any, where: str) -> ScheduleError:
    tree = json.loads(SAMPLE.read_bytes())
    if where.startswith("/statements"):
        tree["statements"] = [*tree.get("statements", []), statement]
    else:
        tree["blocks"]["Gate"] = {**tree["blocks"]["Gate"], "plans": {"p": [statement]}}
    with pytest.raises(ScheduleError) as caught:
        decode(json.dumps(tree))
    return caught.value


@pytest.mark.parametrize("where", ["/statements/2", "/blocks/Gate/plans/p/0"])
def test_an_unknown_kind_is_named_and_the_known_ones_are_listed(where: str) -> None:
    error = refused({"offload": ["a"], "before": "b"}, where)
    assert (error.code, error.where) == ("R017", where)
    assert "'offload'" in error.message
    assert all(kind in error.hint for kind in STATEMENTS)
    misspelt = refused({"before": "b", "recomptue": ["a"]}, where)
    assert (misspelt.code, misspelt.where) == ("R017", where)
    assert "did you mean recompute?" in misspelt.hint
    assert refused({"before": "b"}, where).code == "R017"
    assert refused({}, where).code == "R017"
    assert refused("recompute", where).code == "R012"
    assert refused({"recompute": "a", "before": "b"}, where).where == f"{where}/recompute"
    assert refused({"recompute": ["a"], "after": "b", "before": "b"}, where).code == "R010"


def test_every_kind_is_known_by_a_field_that_no_other_kind_has() -> None:
    fields = {key: {f.encode_name for f in msgspec.structs.fields(kind)} for key, kind in STATEMENTS.items()}
    for key, own in fields.items():
        assert key in own
        assert not any(key in others for other, others in fields.items() if other != key)
    assert (STATEMENTS["recompute"], STATEMENTS["page"], STATEMENTS["split"]) == (Recompute, Page, Split)


def test_the_json_schema_knows_the_same_kinds() -> None:
    definition, kinds = load_schema()["$defs"]["statement"], []
    while "if" in definition:
        kinds += definition["if"]["required"]
        assert definition["then"] == {"$ref": f"#/$defs/{kinds[-1]}"}
        definition = definition["else"]
    assert kinds == list(STATEMENTS)
