"""`-` is standard input wherever a command only reads a schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import in_shell

LINES = [
    "remate show -",
    "remate check -",
    "remate lint -",
    "remate explain -",
    "remate diff mlp.json -",
    "remate report - -o page.html",
    "remate trace - -o t.json",
]


@pytest.mark.quick("remate diff mlp.json ")
@pytest.mark.parametrize("line", LINES)
def test_a_schedule_from_a_pipe(tmp_path: Path, line: str) -> None:
    piped = in_shell(f"cat mlp.json | {line}", tmp_path)
    named = in_shell(line.replace(" -", " mlp.json", 1), tmp_path)
    assert piped.returncode == named.returncode, piped.stderr
    assert piped.stdout.replace("-: ", "mlp.json: ") == named.stdout


def test_nothing_in_the_pipe(tmp_path: Path) -> None:
    process = in_shell("remate show - < /dev/null", tmp_path)
    assert (process.returncode, "standard input is empty" in process.stderr) == (2, True)


def test_a_faulty_schedule_in_the_pipe(tmp_path: Path) -> None:
    process = in_shell("echo '{' | remate show -", tmp_path)
    assert process.returncode == 1
    assert process.stderr.startswith("error: standard input: R002")
