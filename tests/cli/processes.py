"""Runs the command as a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
COMMAND = [sys.executable, "-m", "remate"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1", **more}


def in_shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in `folder`, with copies of the files of `data/`; `remate` in it is the command."""
    shutil.copytree(DATA, folder, dirs_exist_ok=True)
    whole = f"set -o pipefail; remate() {{ '{sys.executable}' -m remate \"$@\"; }}; {line}"
    given: dict[str, Any] = {"cwd": folder, "env": environment(**variables), "capture_output": True, "check": False}
    return subprocess.run(["bash", "-c", whole], text=True, encoding="utf-8", errors="replace", **given)


def at_terminal(argv: list[str], folder: Path, columns: int) -> str:
    """Output of a command at a terminal of this width: standard output and standard error interleaved."""
    shutil.copytree(DATA, folder, dirs_exist_ok=True)
    ours, theirs = os.openpty()
    given = environment(COLUMNS=str(columns), TERM="xterm", NO_COLOR="")
    with subprocess.Popen([*COMMAND, *argv], cwd=folder, env=given, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # the end of a terminal that its program has left
            while part := os.read(ours, 1 << 16):
                seen += part
        process.wait()
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")
