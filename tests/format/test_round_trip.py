"""Writing and reading are inverse, and the text is canonical."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from remate.schedule_tools.schema_file import load_schema
from remate_runtime.errors import ScheduleError
from remate_runtime.format.reader import decode
from remate_runtime.format.schedule import Operation, Schedule
from remate_runtime.format.writer import WIDTH, encode

from .schedules import schedules

ROOT = Path(__file__).parents[2]
VALID = sorted((ROOT / "schema/corpus/valid").glob("*.json"))
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.json") if not path.is_symlink())


@pytest.mark.slow
@given(schedules)
@settings(max_examples=150)
def test_decode_of_encode_is_the_identity(schedule: Schedule) -> None:
    text = encode(schedule)
    again = decode(text)
    assert again == schedule
    assert encode(again) == text


@pytest.mark.slow
@given(schedules)
@settings(max_examples=60)
def test_what_the_reader_accepts_the_json_schema_accepts(schedule: Schedule) -> None:
    Draft202012Validator(load_schema()).validate(json.loads(encode(schedule)))


@pytest.mark.slow
@given(schedules)
@settings(max_examples=60)
def test_canonical_text(schedule: Schedule) -> None:
    text = encode(schedule).decode("ascii")
    assert text.endswith("}\n")
    assert "\r" not in text
    for line in text.splitlines():
        assert line == line.rstrip()
        assert (len(line) - len(line.lstrip())) % 2 == 0
    operations = sum(len(b.forward) + len(b.backward) for b in schedule.blocks.values())
    assert sum(bool(re.match(r' *\{"id": "[^"]*", "op": ', line)) for line in text.splitlines()) == operations


arguments = st.recursive(
    st.sampled_from(["%x", "text", None, 1, -2.5, "%h.0.attn.native_layer_norm:1"]),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.sampled_from(["dict", "each", "is"]), inner),
    max_leaves=200,
)


@pytest.mark.slow
@given(st.lists(arguments, max_size=12))
@settings(max_examples=200)
def test_long_entries_are_wrapped(args: list[Any]) -> None:
    schedule = decode(next(path for path in VALID if path.stem == "minimal").read_bytes())
    name, block = next(iter(schedule.blocks.items()))
    operation = Operation(id="a", op="aten.neg", args=tuple(args), out="f32[]", note="x" * 30)
    text = encode(replace(schedule, blocks={name: replace(block, forward=(operation,))})).decode("ascii")
    assert json.loads(text)["blocks"][name]["forward"][0].get("args", []) == args
    for line in text.splitlines():
        assert (len(line) - len(line.lstrip())) % 2 == 0
        depth = (len(line) - len(line.lstrip())) // 2
        assert len(line) <= WIDTH or depth > 40, line


@pytest.mark.parametrize("path", [*VALID, *EXAMPLES], ids=lambda path: path.stem)
def test_checked_in_files_are_canonical(path: Path) -> None:
    assert encode(decode(path.read_bytes())) == path.read_bytes()
    assert max(map(len, path.read_text().splitlines())) <= WIDTH


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_any_layout_and_explicit_defaults_read_the_same(path: Path) -> None:
    tree = json.loads(path.read_text())
    tree.setdefault("revision", 0)
    tree.setdefault("statements", [])
    for instance in tree["program"]:
        instance.setdefault("plan", "baseline")
        instance.setdefault("note", "")
        instance.setdefault("prefix", None)
    for text in (
        json.dumps(tree, indent=7),
        json.dumps(tree, separators=(",", ":")),
        json.dumps(tree, ensure_ascii=False),
    ):
        assert encode(decode(text)) == path.read_bytes()


def test_floats_and_integers_keep_their_kind() -> None:
    schedule = decode(next(path for path in VALID if path.stem == "literals").read_bytes())
    results = [op.args[1] for op in schedule.blocks["Literals"].forward if op.id in ("full_3", "full_4", "full_5")]
    assert [repr(value) for value in results] == ["-3.4028234663852886e+38", "9223372036854775807", "-0.0"]


@pytest.mark.parametrize("argument", [float("nan"), object(), b"x"])
def test_what_json_cannot_say_is_refused(argument: object) -> None:
    schedule = decode(VALID[0].read_bytes())
    name, block = next(iter(schedule.blocks.items()))
    operation = Operation(id="a", op="aten.neg", args=(argument,), out="f32[]")
    broken = replace(schedule, blocks={name: replace(block, forward=(operation,))})
    with pytest.raises(ScheduleError, match="R021"):
        encode(broken)
