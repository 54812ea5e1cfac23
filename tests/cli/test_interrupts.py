"""Ctrl-C at any moment: the best plan found is saved, or the exit status is 130; never a traceback or a half-written
file."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from remate.__main__ import leave
from remate.interrupts import Finishing
from remate.strategy.deadline import Deadline
from remate_runtime.format import load
from remate_runtime.support import files

from .processes import DATA, environment

Remate = Callable[..., Any]
COMMANDS = {
    "plan": "plan models.py:build --budget 60% --cost cpu -o out.json",
    "measured": "plan models.py:build --budget 60% -o out.json",
    "frontier": "frontier models.py:build --budgets 40%..90% --steps 5 --cost cpu -o out",
    "run": "run s.json --model models.py:build --steps 50",
    "check": "check mlp.json",
    "edit": "edit mlp.json --keep layers.2.addmm",
    "fmt": "fmt mlp.json",
}
LONGEST = {"plan": 4.0, "measured": 5.0, "frontier": 6.0, "run": 4.0}  # seconds to interrupt within
MOMENTS = 3
# as the console script does it, with a word when Python itself, which no program can keep quiet, has started
START = """
import os, signal, remate.__main__ as command
signal.signal(signal.SIGINT, command.leave)
os.write(1, b"!")
command.run()
"""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Restore Ctrl-C, which shells disable for background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def interrupted(folder: Path, planned: Path, line: str, *waits: float) -> Ended:
    """Run the command in `folder`, with SIGINT this many seconds after its start, and again."""
    shutil.copytree(DATA, folder, dirs_exist_ok=True)
    shutil.copy(planned, folder / "s.json")
    command = [sys.executable, "-c", START, *line.split()]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"!"
    for wait in waits:
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out.decode(), err.decode())


def judge(folder: Path, ended: Ended, about: str) -> None:
    assert ended.status in (0, 130), (about, ended)
    assert "Traceback" not in ended.err, (about, ended)
    assert "Error" not in ended.err, (about, ended)
    assert "defect" not in ended.err, (about, ended)
    assert not list(folder.rglob("*.tmp")), about
    for path in (*folder.glob("*.json"), *folder.glob("out/budget-*.json")):
        if path.name != "graph.json":  # a bare instance
            load(path)
    if ended.status == 0 and " -o out.json" in about:
        assert (folder / "out.json").exists(), (about, ended)


@pytest.mark.parametrize("name", ["plan", "check", "edit"])
def test_at_the_beginning(tmp_path: Path, planned_once: Path, name: str) -> None:
    judge(tmp_path, interrupted(tmp_path, planned_once, COMMANDS[name], 0.0), COMMANDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "measured", "run", "fmt"])
def test_at_random_moments(tmp_path: Path, planned_once: Path, name: str) -> None:
    draw = random.Random(name)
    for part in range(MOMENTS):  # one in each part of the time
        folder = tmp_path / str(part)
        after = (part + draw.random()) / MOMENTS * LONGEST.get(name, 0.4)
        judge(folder, interrupted(folder, planned_once, COMMANDS[name], after), f"{COMMANDS[name]} after {after:.3f} s")


@pytest.mark.slow
def test_an_impatient_person(tmp_path: Path, planned_once: Path) -> None:
    draw = random.Random(0)
    for part in range(MOMENTS):
        first = (part + draw.random()) / MOMENTS * LONGEST["frontier"]
        folder, waits = tmp_path / str(part), [first, *(draw.uniform(0, 0.1) for _ in range(3))]
        judge(folder, interrupted(folder, planned_once, COMMANDS["frontier"], *waits), f"after {waits}")


class Press:
    """Interrupts the process when a function is called for the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, times: int = 1) -> None:
        self.real, self.times = getattr(module, name), times
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for _ in range(self.times):
            self.times = 0
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return self.real(*args, **kwargs)


PLAN = ("plan", "models.py:build", "--budget", "75%", "--cost", "cpu", "-o", "s.json")


def test_while_capturing(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    import remate.api.plan as api

    Press(monkeypatch, api, "captured")
    assert remate(*PLAN) == (130, "", "error: interrupted\n")
    assert not Path("s.json").exists()


@pytest.mark.quick("plan")
@pytest.mark.parametrize(("module", "name"), [("plan", "schedule_of"), ("writing", "simulate")])
def test_a_solution_is_saved(remate: Remate, monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    """A solution is not lost if Ctrl-C arrives while it is written."""
    Press(monkeypatch, importlib.import_module(f"remate.api.{module}"), name)
    assert remate(*PLAN).status == 0
    assert remate("check", "s.json").status == 0


def test_the_second_time_is_meant(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    import remate.api.plan as api

    Press(monkeypatch, api, "schedule_of", times=2)
    assert remate(*PLAN) == (130, "", "error: interrupted\n")
    assert not Path("s.json").exists()


def test_while_solving(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best schedule so far is kept. Without a schedule, infeasibility is not claimed."""
    search = sys.modules["remate.strategy.solve"]  # the package has a function of this name
    Press(monkeypatch, search, "candidates")
    outcome = remate(*PLAN)
    if outcome.status == 0:
        assert load("s.json").solve.stopped_by in ("interrupted", "optimal")
    else:
        assert outcome == (130, "", "error: interrupted\n")


def test_the_budgets_that_are_solved_are_kept(remate: Remate, monkeypatch: pytest.MonkeyPatch) -> None:
    Press(monkeypatch, sys.modules["remate.cli.frontier"], "_point")  # when all are solved: too late to lose anything
    argv = ("frontier", "models.py:build", "--budgets", "60%,80%", "--cost", "cpu", "-o", "out")
    assert remate(*argv).status == 130
    assert {path.name for path in Path("out").iterdir()} >= {"budget-060.json", "budget-080.json", "frontier.json"}


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Finishing(), Deadline():
        pass
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """For example in processes that a script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Finishing() as finishing, Deadline() as deadline:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        assert not finishing.pressed
        assert not deadline.interrupted
        code = "import os, signal, sys; sys.argv[1:] = ['--version']; from remate import cli, __main__; "
        code += "cli.main = lambda: os.kill(os.getpid(), signal.SIGINT) or 0; __main__.run()"
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_file_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves no temporary file."""
    old = signal.signal(signal.SIGINT, leave)
    try:
        Press(monkeypatch, os, "fsync")
        with pytest.raises(KeyboardInterrupt):
            files.write_atomically(tmp_path / "s.json", b"text")
    finally:
        signal.signal(signal.SIGINT, old)
    assert os.listdir(tmp_path) == []


def test_a_search_that_does_not_end() -> None:
    """The first Ctrl-C requests the end of the search, the second one does not wait for it."""
    with pytest.raises(KeyboardInterrupt), Deadline() as deadline:  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert deadline.stopped()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
