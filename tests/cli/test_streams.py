"""Standard output that is closed early, lacks characters or is full: no traceback, and correct exit status."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from remate.cli.streams import Stream

from .processes import COMMAND, DATA, environment, in_shell

FAULTY = 'sed \'s/"recompute": \\["addmm"\\]/"recompute": ["addmn"]/\' mlp.json > bad.json; '


@pytest.mark.quick("1-0")
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("remate show mlp.json --all | head -1", 0),
        ("remate check bad.json bad.json 2>&1 | head -1", 1),
        ("remate check --format github bad.json | true", 1),
        ("remate report mlp.json -o - | head -c 10", 0),
    ],
)
def test_a_reader_that_goes_away_keeps_the_status(tmp_path: Path, line: str, status: int) -> None:
    done = in_shell(FAULTY + line, tmp_path)
    assert done.returncode == status
    assert not done.stderr or done.stderr.startswith("wrote to standard output, ")
    assert "Traceback" not in done.stdout


def test_a_closed_pipe_before_the_first_word() -> None:
    command = [*COMMAND, "show", str(DATA / "mlp.json"), "--all"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(PYTHONUNBUFFERED="1")
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.slow
def test_letters_that_standard_output_lacks(tmp_path: Path) -> None:
    result = 'sed \'s/"name": "mlp"/"name": "m\\\\u03bbp \\\\u2192"/\' mlp.json > greek.json; '
    line = "remate show greek.json && remate explain mlp.json && remate check greek.json && remate nonsense…"
    done = in_shell(result + line, tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "m\\u03bbp ->" in done.stdout


@pytest.mark.slow
def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    done = in_shell("cp mlp.json $'a\\xff.json'; remate check $'a\\xff.json'; remate check $'b\\xff.json'", tmp_path)
    assert done.returncode == 2
    assert "a\\udcff.json: valid" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_full_disk_behind_standard_output(tmp_path: Path) -> None:
    done = in_shell("remate show mlp.json > /dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: standard output: No space left on device\nhint: make room on that disk, or name a file on another one\n"
    )


@pytest.mark.slow
def test_standard_output_that_is_closed(tmp_path: Path) -> None:
    assert in_shell("remate check mlp.json >&-", tmp_path).returncode == 0
    done = in_shell("remate report mlp.json -o - >&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: standard output is closed\nhint: name a file instead of -\n"


def test_a_stream_is_what_is_behind_it() -> None:
    behind = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream = Stream(behind, "standard output")
    assert stream.write("1 … λ") == 5
    stream.write_data(b"\xff")
    assert not stream.isatty()
    assert behind.buffer.getvalue() == b"1 ... \\u03bb\xff"  # type: ignore[attr-defined]
