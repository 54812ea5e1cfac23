"""Closed word lists: the JSON Schema has the same words, and every status can be saved and read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from remate.schedule_tools.schema_file import load_schema
from remate_runtime.errors import ScheduleError
from remate_runtime.format import decode, encode, load, save
from remate_runtime.format.tensor_type import DTYPES
from remate_runtime.format.vocabulary import (
    CHOICES,
    CONTAINERS,
    DEVICES,
    DTYPE_NAMES,
    SPELLINGS,
    STOPPED_BY,
    InputLeaf,
    OutputLeaf,
)

SAMPLE = Path(__file__).parents[2] / "schema/corpus/valid/instances.json"
SCHEMA = load_schema()
DEFINITIONS = SCHEMA["$defs"]


def test_the_json_schema_states_the_same_words() -> None:
    model, solve = DEFINITIONS["model"]["properties"], DEFINITIONS["solve"]["properties"]
    special = DEFINITIONS["special"]["properties"]
    assert solve["stopped_by"]["enum"] == list(STOPPED_BY)
    assert model["device"]["enum"] == list(DEVICES)
    assert model["autocast"]["enum"] == [None, *DTYPE_NAMES]
    assert DEFINITIONS["dtype"]["enum"] == list(DTYPE_NAMES) == list(DTYPES)
    assert re.findall(r"^\^\((.*?)\)", DEFINITIONS["tensor_text"]["pattern"]) == ["|".join(DTYPE_NAMES)]
    assert list(special) == list(SPELLINGS) == [*CHOICES, "complex", "size", "number"]
    for key in CHOICES.keys() - {"dtype"}:
        words = special[key]["anyOf"][0] if key == "float" else special[key]
        assert words["enum"] == list(CHOICES[key]), key
    assert special["dtype"]["$ref"] == "#/$defs/dtype"


@pytest.mark.parametrize(("tree", "leaf"), [("input_tree", InputLeaf), ("output_tree", OutputLeaf)])
def test_trees_have_the_same_kinds_of_nodes(tree: str, leaf: Any) -> None:
    assert sorted(_kinds(DEFINITIONS[tree])) == sorted([*get_args(leaf), *CONTAINERS])


def _kinds(node: dict[str, Any]) -> list[str]:
    """The keys in a chain of `if required … else …`."""
    return [*node["if"]["required"], *_kinds(node["else"])] if "if" in node else []


@pytest.mark.parametrize("word", STOPPED_BY)
def test_every_status_can_be_saved_and_read(word: Any, tmp_path: Path) -> None:
    schedule = load(SAMPLE)
    ended = replace(schedule, solve=replace(schedule.solve, stopped_by=word))
    save(ended, tmp_path / "s.json")
    assert load(tmp_path / "s.json") == ended


def test_a_word_that_is_not_on_the_list_is_refused_with_the_list() -> None:
    tree = json.loads(SAMPLE.read_bytes())
    tree["solve"]["stopped_by"] = "intervened"
    with pytest.raises(ScheduleError) as caught:
        decode(json.dumps(tree))
    assert (caught.value.code, caught.value.where) == ("R013", "/solve/stopped_by")
    assert all(word in str(caught.value) for word in STOPPED_BY)
    schedule = load(SAMPLE)
    wrong: Any = "intervened"
    with pytest.raises(ScheduleError, match="R013"):
        decode(encode(replace(schedule, solve=replace(schedule.solve, stopped_by=wrong))))
