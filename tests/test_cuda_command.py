"""`tools/cuda` on the CPU: all of it but the device. Its parts on its own; the whole among the slow tests."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

import remate
from tools.bench.cuda import packages
from tools.bench.cuda import worker as worker_module
from tools.bench.cuda.__main__ import MODELS
from tools.bench.cuda.contest import Outcome
from tools.bench.cuda.process import Process, without_folders
from tools.bench.cuda.slots import SLOTS, shared_file, slot
from tools.bench.cuda.subjects import FULL, QUICK
from tools.bench.cuda.tables import reason, table
from tools.bench.cuda.worker import Worker

ROOT = Path(__file__).parents[1]
LOSS = 64  # bytes that a loss made outside of the model may hold: the scalars of its own
ECHO = """
import json, sys, time
print("chatter of a library", file=sys.stderr, flush=True)
for line in sys.stdin:
    if line == "stop\\n": sys.exit(3)
    if line == "sleep\\n": time.sleep(600)
    print(json.dumps({"failed": "Traceback: oh"} if line == "fail\\n" else {"said": line.strip()}), flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Any:
    result = Process([sys.executable, "-c", ECHO], {}, tmp_path, tmp_path / "log")
    yield result
    result.close()


def later(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_process_answers(process: Process) -> None:
    for word in ("setup", "peak"):
        process.tell(word)
    assert process.hear(later(60)) == {"said": "setup"}
    assert process.hear(later(60)) == {"said": "peak"}
    assert process.failure == ""


@pytest.mark.parametrize(
    ("word", "limit", "why"),
    [
        ("fail", 60.0, "Traceback: oh"),
        ("stop", 60.0, "the process stopped, exit status 3"),
        ("sleep", 0.2, "no answer in time"),
    ],
)
def test_a_process_that_fails_is_ended_and_says_why(process: Process, word: str, limit: float, why: str) -> None:
    process.tell("ready")
    assert process.hear(later(60)) == {"said": "ready"}
    process.tell(word)
    assert process.hear(later(limit)) == {}
    assert process.failure == f"{why}\nchatter of a library"
    process.tell("again")
    assert process.hear(later(60)) == {}


HOLDER = """
import sys, time
from pathlib import Path
from tools.bench.cuda.slots import slot
folder = Path(sys.argv[1])
with slot(folder, "device", 2):
    mine = folder / f"{sys.argv[2]}.inside"
    mine.touch()
    time.sleep(0.3)
    print(len([*folder.glob("*.inside")]))
    mine.unlink()
"""


def test_a_failure_names_no_folders_of_the_machine() -> None:
    root = Path(packages.__file__).resolve().parents[3]
    text = f'  File "{root}/remate/api/plan.py", line 1\n  File "/any/lib/site-packages/torch/nn/modules.py", line 2\n'
    shortened = '  File "remate/api/plan.py", line 1\n  File "torch/nn/modules.py", line 2\n'
    assert without_folders(text) == shortened


def test_few_processes_hold_a_slot_at_the_same_time(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), str(n)], cwd=ROOT, stdout=subprocess.PIPE)
        for n in range(6)
    ]
    inside = [int(each.communicate()[0]) for each in started]
    assert len(inside) == 6
    assert set(inside) <= {1, 2}


def test_a_process_that_is_killed_leaves_its_slot(tmp_path: Path) -> None:
    code = HOLDER.replace("time.sleep(0.3)", "print('inside', flush=True); time.sleep(600)")
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "inside\n"
    with slot(tmp_path, "device", 2):
        third = tmp_path / "third"
        waiting = threading.Thread(target=lambda: _hold(tmp_path, third))
        waiting.start()
        waiting.join(0.3)
        assert not third.exists()
        started.kill()
        started.wait()
        waiting.join(60)
        assert third.exists()


def _hold(folder: Path, made: Path) -> None:
    with slot(folder, "device", 2):
        made.touch()


def test_processes_share_a_file_or_why_there_is_none(tmp_path: Path) -> None:
    calls: list[str] = []

    def write(part: Path) -> None:
        calls.append("written")
        part.write_text("plan", encoding="utf-8")

    def fail(part: Path) -> None:
        calls.append("failed")
        raise ValueError("nothing fits")

    for _ in range(2):
        assert shared_file(tmp_path / "plan.json", write).read_text(encoding="utf-8") == "plan"
    with pytest.raises(ValueError, match="nothing fits"):
        shared_file(tmp_path / "other.json", fail)
    with pytest.raises(RuntimeError, match="nothing fits"):
        shared_file(tmp_path / "other.json", fail)
    assert calls == ["written", "failed"]


@pytest.mark.slow
def test_configurations_share_a_plan_and_take_steps_within_a_slot(tmp_path: Path) -> None:
    plans: list[Any] = []
    plan = remate.plan

    def counted(*args: Any, **kwargs: Any) -> Any:
        plans.append(kwargs["budget"])
        return plan(*args, **kwargs)

    class Watched(Worker):
        held: ClassVar[list[bool]] = []

        def step(self) -> None:
            free = [_free(tmp_path / f"device.{number}.lock") for number in range(SLOTS)]
            self.held.append(free.count(False) == 1)
            super().step()

    engines = mock.patch.dict(worker_module._ENGINES, {"remate-graphs": "eager"})  # compiling takes a minute
    with engines, mock.patch.object(remate, "plan", counted):
        for configuration in ("remate=60%", "remate-graphs=60%", "eager"):
            worker = Watched("unet", configuration, "cpu", quick=True, profile=str(tmp_path / "profile.json"))
            facts = worker.answer("setup")
            assert facts["waited"] < facts["seconds"]
    assert plans == ["60%"]
    assert Watched.held == [True] * 9


def _free(file: Path) -> bool:
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def test_table_of_what_was_measured_and_what_fell() -> None:
    eager = Outcome(
        "eager",
        {"peak": 4 << 20, "reserved": 8 << 20, "step_reserved": 6 << 20, "seconds": 3.0},
        [[10.0, 11.0, 10.0], [20.0]],
    )
    facts = {
        "peak": 2 << 20,
        "predicted": 2 << 20,
        "modelled_reserved": 3 << 20,
        "seconds": 9.0,
        "predicted_ms": 16.5,
        "bitwise": False,
        "difference": 1e-7,
    }
    ours = Outcome("remate=50%", facts, [[12.0, 12.0, 90.0], [22.0]])
    killed = Outcome("compile", failure="Traceback (most recent call last):\n  File x\nValueError: no\nmore\n")
    text = table({outcome.configuration: outcome for outcome in (eager, ours, killed, Outcome("checkpoint"))})
    rows = [line.split("  ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[2] == ["eager", "4.0 MiB", "8.0 MiB", "6.0 MiB", "10.50 ms", "1.000 (1.000-1.000)", "3 s"]
    assert cells[3][0:5] == ["remate, budget 50%", "2.0 MiB", "2.0 MiB", "3.0 MiB", "17.00 ms"]
    assert cells[3][5:] == ["16.50 ms", "1.150 (1.125-1.175)", "1.0e-07", "9 s"]
    assert cells[4] == ["torch.compile", "failed: ValueError: no"]
    assert cells[5] == ["torch.utils.checkpoint per block", "failed: no time was left"]
    assert reason(killed) == "ValueError: no"


def test_nothing_is_installed_where_nothing_is_missing(tmp_path: Path) -> None:
    assert packages.install(tmp_path / "packages", tmp_path, 60) == "nothing was missing"
    assert not (tmp_path / "packages").exists()


@pytest.mark.slow
def test_packages_come_from_carried_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip cannot resolve them (here: a wheel without metadata) they are unpacked; what lacks is named."""
    monkeypatch.setattr(packages, "NEEDED", ("json", "carried_alone", "carried_by_nobody"))
    with zipfile.ZipFile(tmp_path / "carried_alone-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_alone.py", "here = True\n")
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no zip")
    said = packages.install(tmp_path / "packages", tmp_path, 60)
    assert "unpacking broken-1.0-py3-none-any.whl: File is not a zip file" in said
    assert said.endswith("still missing: carried_by_nobody")
    variables = packages.environment(tmp_path / "packages")
    code = [sys.executable, "-c", "import carried_alone; print(carried_alone.here)"]
    assert {"remate", "remate_runtime"} <= {
        p.name for f in variables["PYTHONPATH"].split(":") for p in Path(f).iterdir()
    }
    assert subprocess.run(code, env=variables, capture_output=True, text=True, check=True).stdout == "True\n"


def run(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tools" / "cuda"), "--device", "cpu", "--quick", "-o", str(output), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def outcomes(output: Path) -> dict[tuple[str, str], Any]:
    lines = (output / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
    return {(item["model"], item["configuration"]): item for item in map(json.loads, lines)}


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    """A configuration that cannot be is written down with its traceback, and the rest goes on."""
    only = "eager,checkpoint,remate=80%,remate=checkpoint,remate=1%"
    done = run(tmp_path, "--models", "unet", "--only", only, "--minutes", "12")
    assert done.returncode == 1, done.stdout + done.stderr
    result = outcomes(tmp_path)
    assert {name for (_, name), entry in result.items() if entry["failure"]} == {"remate=1%"}
    assert "InfeasibleError" in (tmp_path / "failures.txt").read_text(encoding="utf-8")
    eager, ours = result["unet", "eager"], result["unet", "remate=80%"]
    assert ours["peak"] == pytest.approx(ours["predicted"], abs=LOSS)
    assert ours["predicted"] <= 0.8 * ours["baseline"]
    assert ours["bitwise"]
    beside = result["unet", "remate=checkpoint"]
    assert beside["peak"] == pytest.approx(beside["predicted"], abs=LOSS)
    assert beside["predicted"] <= result["unet", "checkpoint"]["peak"] < eager["peak"]
    rounds = {len(entry["ms"]) for name, entry in result.items() if name[1] not in ("profile", "remate=1%")}
    assert len(rounds) == 1
    assert rounds.pop() >= 1
    assert "skipped" in (tmp_path / "tests.txt").read_text(encoding="utf-8")
    text = (tmp_path / "benchmarks.txt").read_text(encoding="utf-8")
    assert "remate, at checkpoint's peak" in text
    assert "torch" in (tmp_path / "environment.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_kind_of_plan(tmp_path: Path) -> None:
    """In this process: what a worker answers."""

    def facts(kind: str) -> dict[str, Any]:
        worker = Worker("unet", f"{kind}=80%", "cpu", quick=True, profile=str(tmp_path / "profile.json"))
        return worker.answer("setup") | worker.answer("peak")

    elsewhere = facts("remate-elsewhere")
    assert elsewhere["peak"] <= elsewhere["predicted"]
    split = facts("remate-split")
    assert split["peak"] < split["baseline"]
    assert split["difference"] < 1e-4
    paged = facts("remate-pages")
    assert paged["peak"] <= 0.8 * paged["baseline"] + LOSS
    assert paged["bitwise"]
    assert elsewhere["predicted_ms"] != paged["predicted_ms"]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_model(model: str, tmp_path: Path) -> None:
    """In this process: what a worker answers."""
    assert (*FULL,) == (*QUICK,) == MODELS
    worker = Worker(model, "remate=80%", "cpu", quick=True, profile=str(tmp_path / "profile.json"))
    ours = worker.answer("setup") | worker.answer("peak")
    assert ours["peak"] == pytest.approx(ours["predicted"], abs=LOSS)
    assert ours["predicted"] <= 0.8 * ours["baseline"]
