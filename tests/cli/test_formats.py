"""Formats of faults in `check` for people, programs and GitHub; `fmt`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate.present.faults import render, subjects
from remate_runtime.errors import ScheduleError
from remate_runtime.format.reader import decode

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]


@pytest.fixture
def faulty() -> str:
    text = (
        Path("mlp.json")
        .read_text()
        .replace('"aten.gelu"', '"os.gelu"')
        .replace('"args": ["%grad.t', '"argz": ["%grad.t', 1)
    )
    return text.replace('"recompute": ["addmm"]', '"recompute": ["%addmm"]')


@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_faults_in_every_format(remate: Remate, golden: Golden, faulty: str, form: str) -> None:
    Path("a,b%.json").write_text(faulty)
    golden(f"format-{form}.txt", str(remate("check", "a,b%.json", "--format", form)))


@pytest.mark.parametrize(("form", "out"), [("json", '{\n  "file": "mlp.json",\n  "faults": []\n}\n'), ("github", "")])
def test_no_faults(remate: Remate, form: str, out: str) -> None:
    assert remate("check", "mlp.json", "--format", form) == (0, out, "")


def test_json_names_code_place_and_what_it_is_in(remate: Remate, faulty: str) -> None:
    Path("bad.json").write_text(faulty)
    faults = json.loads(remate("check", "bad.json", "--format", "json").out)["faults"]
    assert [(fault["code"], fault["in"]) for fault in faults] == [
        ("R050", "block Layer, operation gelu"),
        ("R010", "block Layer, operation grad.mm_weight"),
        ("R014", "block Layer, plan recompute"),
    ]


def test_subjects_of_odd_pointers() -> None:
    text = '{"blocks": {"a/b": {"forward": [{"id": 3}, {"id": "x"}]}}, "program": [{"id": "p"}]}'
    pointers = [
        "",
        "/blocks",
        "/blocks/a~1b",
        "/blocks/a~1b/forward/0",
        "/blocks/a~1b/forward/1/op",
        "/program/0",
        "/program/9",
    ]
    results = ["", "", "block a/b", "block a/b", "block a/b, operation x", "instance p", ""]
    assert subjects(text.encode(), pointers) == results
    assert subjects(b"[[", ["", "/0"]) == ["", ""]


def test_any_line_can_be_shown(tmp_path: Path) -> None:
    """Long lines are cut around the fault, and control characters never reach the terminal."""
    for text in (
        '{"a": "' + "x" * 500 + '\x1b[31m"}',
        "\x00" * 300,
        '{"a": "\u202e\x07',
        "\n\n\n",
        '{"k": ' + "[" * 500,
    ):
        with pytest.raises(ScheduleError) as caught:
            decode(text)
        shown = render("text", "s.json", text.encode(), caught.value.faults)
        assert all(line.isprintable() for line in shown.split("\n"))
        assert max(map(len, shown.split("\n"))) < 500  # a control character is shown as four


def test_fmt(remate: Remate) -> None:
    canonical = Path("mlp.json").read_text()
    Path("loose.json").write_text(json.dumps(json.loads(canonical), indent=4))
    assert remate("fmt", "--check", "mlp.json") == (0, "", "")
    checked = remate("fmt", "--check", "mlp.json", "loose.json")
    assert checked == (1, "loose.json: not canonical\n", "hint: remate fmt rewrites 1 file\n")
    assert remate("fmt", "mlp.json", "loose.json") == (0, "loose.json: rewritten\n", "")
    assert Path("loose.json").read_text() == canonical
    assert remate("fmt", "mlp.json", "loose.json") == (0, "", "")


def test_fmt_leaves_a_faulty_file_alone(remate: Remate, faulty: str) -> None:
    Path("bad.json").write_text(faulty)
    outcome = remate("fmt", "bad.json", "mlp.json")
    assert outcome.status == 1
    assert "bad.json:45:30: error[R050]" in outcome.err
    assert Path("bad.json").read_text() == faulty
    assert remate("fmt", "nowhere.json").status == 2
