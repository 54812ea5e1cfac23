"""What all commands share: exit status, errors without traceback, lazy imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate.present import text
from remate_runtime.version import __version__

Remate = Callable[..., Any]


def test_version(remate: Remate) -> None:
    assert remate("--version") == (0, f"remate {__version__}\n", "")


@pytest.mark.parametrize("argv", [(), ("check",), ("plan", "x.py"), ("run", "mlp.json")])
def test_wrong_arguments(remate: Remate, argv: tuple[str, ...]) -> None:
    outcome = remate(*argv)
    assert outcome.status == 2
    assert outcome.err.startswith("error: remate")
    assert outcome.err.splitlines()[1].endswith("--help` lists the arguments")
    assert len(outcome.err.splitlines()) == 2


@pytest.mark.parametrize("budget", ["0", "0%", "-5%", "junk", "5 bananas", ""])
def test_wrong_budget(remate: Remate, budget: str) -> None:
    outcome = remate("plan", "build.py", f"--budget={budget}", "-o", "s.json")
    assert outcome.status == 2
    assert "--budget" in outcome.err


def test_interruption(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remate_cli_show(), "run", interrupted)
    assert remate("show", "mlp.json") == (130, "", "error: interrupted\n")


def remate_cli_show() -> Any:
    import remate.cli.show

    return remate.cli.show


def test_full_disk(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(argv: object) -> None:
        raise OSError(28, "No space left on device", "s.json")

    monkeypatch.setattr(remate_cli_show(), "run", full)
    assert remate("show", "mlp.json") == (
        2,
        "",
        "error: s.json: No space left on device\nhint: make room on that disk, or name a file on another one\n",
    )


@pytest.mark.slow
def test_reader_that_goes_away() -> None:
    """`remate show S.json | head -1` prints no traceback."""
    schedule = Path(__file__).parent / "data" / "mlp.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-u", "-m", "remate", "show", str(schedule), "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 << 20, "10.0 MiB"),
        (3 << 40, "3.00 TiB"),
    ],
)
def test_sizes(nbytes: int, shown: str) -> None:
    assert text.size(nbytes) == shown


@pytest.mark.parametrize(("ns", "shown"), [(0, "0.00 ns"), (1500, "1.50 us"), (999_999, "1.00 ms"), (61e9, "61.0 s")])
def test_durations(ns: float, shown: str) -> None:
    assert text.duration(ns) == shown


def test_percent_has_no_negative_zero() -> None:
    assert text.percent(-0.00001) == "0.00%"
    assert text.percent(-0.01) == "-1.00%"
