"""Output at a terminal: tables no wider than it, and colours unless disabled."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from remate.cli.streams import Stream
from remate.present.text import table

from .processes import at_terminal, in_shell

ROWS = [("name", "size", "about"), ("transformer.h.0.attn.softmax", "12 MiB", "x" * 40), ("short", "1 B", "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 40, 60, 100])
def test_tables_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = table(ROWS, right=(1,), indent="  ").split("\n")
    assert max(map(len, lines)) <= max(columns, 2 + 12 + 2 + 6 + 2 + 12)
    assert "12 MiB" in lines[1], "figures are never cut"
    if columns == 100:
        assert "…" not in "".join(lines)
    if columns == 40:
        assert re.search(r"transf\S*…\S*max", lines[1]), "beginning and end stay"


def test_tables_in_a_file_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "20")
    assert "…" not in table(ROWS)


@pytest.mark.slow
def test_show_at_a_narrow_terminal(tmp_path: Path) -> None:
    seen = at_terminal(["show", "mlp.json", "--all"], tmp_path, 50)
    tables = [line for line in seen.split("\n") if re.match(r" +\S+ [KM]?i?B +\d+x", line)]
    assert tables
    assert max(map(len, tables)) <= 50
    piped = in_shell("remate show mlp.json --all", tmp_path, COLUMNS="50").stdout
    assert "…" not in piped


FAULTY = ["check", "nowhere.json"]


@pytest.mark.slow
def test_colours(tmp_path: Path) -> None:
    assert "\x1b[1;31merror\x1b[0m: R000" in at_terminal(FAULTY, tmp_path, 80)
    assert "\x1b[36mhint\x1b[0m: " in at_terminal(FAULTY, tmp_path, 80)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_they_are_unwanted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    print("error: x", file=Stream(terminal, "standard error"))
    assert terminal.getvalue() == "error: x\n"


def test_no_colours_in_a_pipe(tmp_path: Path) -> None:
    done = in_shell("remate check nowhere.json", tmp_path, TERM="xterm")
    assert done.stderr.startswith("error: ")
    assert "\x1b" not in done.stderr


def test_words_that_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    stream = Stream(terminal, "standard error")
    print(
        "a.json:3:4: error[R081] at /x: no error: here",
        "  hint: do",
        "errors: none",
        "hinterland",
        sep="\n",
        file=stream,
    )
    assert terminal.getvalue() == (
        "a.json:3:4: \x1b[1;31merror[R081]\x1b[0m at /x: no error: here\n  \x1b[36mhint\x1b[0m: do\nerrors: "
        "none\nhinterland\n"
    )
