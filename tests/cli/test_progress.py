"""Progress on stderr: at a terminal one line that is rewritten, from the first moment, and gone at the end; elsewhere
lines of their own, after some seconds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from remate.api import progress as waiting
from remate.cli import progress

from .processes import at_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Screen:
    """The visible content of a terminal line that is rewritten."""

    def __init__(self, written: str) -> None:
        self.cells: list[str] = []
        at = 0
        for letter in written:
            if letter == "\r":
                at = 0
                continue
            self.cells[at : at + 1] = [letter]
            at += 1

    def __str__(self) -> str:
        return "".join(self.cells).rstrip()


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stderr by a terminal. This is not a fixture, because pytest restores stderr between fixtures and test."""
    result = Terminal()
    monkeypatch.setattr(sys, "stderr", result)
    monkeypatch.setattr(waiting.Waiting.__init__, "__defaults__", (3.0, 0.0, "remate: "))
    monkeypatch.setenv("COLUMNS", "40")
    return result


def test_a_line_is_rewritten_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with progress.Reporter() as report:
        report("capturing the joint graph")
        assert str(Screen(terminal.getvalue())) == "capturing the joint graph"
        report("solving")
        assert str(Screen(terminal.getvalue())) == "solving"
        report("x" * 100)
        assert str(Screen(terminal.getvalue())) == "x" * 39  # a full line would scroll
    assert str(Screen(terminal.getvalue())) == ""
    assert terminal.getvalue().endswith("\r")
    assert "\n" not in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()  # neither colours nor cursor movements


def test_silence_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with progress.Reporter(quiet=True) as report:
        report("solving")
    assert terminal.getvalue() == ""
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress.Reporter() as report:
        report("solving")
    assert pipe.getvalue() == ""


def test_who_waits_at_a_pipe_is_told_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(waiting.Waiting.__init__, "__defaults__", (3.0, 0.03, "remate: "))
    with waiting.telling("auto") as say:
        assert say is not None
        for now, text in ((2.9, "tracing"), (3.1, "solving"), (9.0, "still solving"), (14.0, "found\x1b[2J")):
            clock[0] = 100.0 + now
            say(text)
    assert pipe.getvalue() == "remate: 3 s: solving\nremate: 14 s: found\\x1b[2J\n"
    with waiting.telling(None) as say:
        assert say is None


@pytest.mark.slow
def test_a_person_sees_what_happens_from_the_beginning(tmp_path: Path) -> None:
    seen = at_terminal(["plan", "models.py:build", "--budget", "75%", "--cost", "cpu", "-o", "s.json"], tmp_path, 80)
    assert seen.startswith("\rrunning models.py:build")
    assert "\rtracing forward and backward" in seen
    assert seen.endswith(": remate run s.json --model models.py:build   # train with it, beside eager\n")
