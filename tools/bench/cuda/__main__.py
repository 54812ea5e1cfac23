"""Tests that need a GPU, and benchmarks on one, within a limit of time: `tools/cuda --help`. Standard library alone."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from .contest import CONFIGURATIONS, Contest, Outcome
from .packages import ROOT, environment, install
from .tables import LEGEND, table

MODELS = ("gpt2", "resnet50", "unet", "llama")
_TESTS = 1 / 3  # of the time, at most
_RESERVE = 5.0  # seconds to write and to end
_ABOUT = """
import platform, sys, torch
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {platform.platform()}")
if torch.cuda.is_available():
    about = torch.cuda.get_device_properties(0)
    print(f"{about.name}, {about.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
else:
    print(f"no CUDA device; {torch.backends.cpu.get_cpu_capability()}")
"""


class Session:
    """One run: `output` gets every result as soon as it is there."""

    def __init__(self, output: Path, minutes: float) -> None:
        self.output, self._start = output, time.monotonic()
        self.until = self._start + 60 * minutes - _RESERVE
        output.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:5.0f} s] {text}", flush=True)

    def write(self, name: str, text: str) -> None:
        (self.output / name).write_text(text.rstrip() + "\n", encoding="utf-8")


def called(command: Sequence[str], variables: Mapping[str, str], limit: float) -> tuple[int | None, str]:
    """Exit status (None: it took too long) and all that was printed."""
    with tempfile.TemporaryFile() as printed:
        started = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, env=dict(variables), cwd=ROOT, start_new_session=True
        )
        try:
            status: int | None = started.wait(timeout=max(1.0, limit))
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            status = None
        printed.seek(0)
        return status, printed.read().decode(errors="replace")


def tests(session: Session, variables: Mapping[str, str]) -> bool:
    """Every test marked `cuda`. Collects only the files that have any."""
    files = [
        str(p.relative_to(ROOT))
        for p in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.cuda" in p.read_text("utf-8")
    ]
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "--slow", "-v", "--tb=short", "-p", "no:cacheprovider"]
    parallel = find_spec("xdist") is not None and (os.cpu_count() or 1) >= 4
    command += ["-n", str(min(8, (os.cpu_count() or 1) // 2))] if parallel else []
    session.say(f"tests marked cuda, in {', '.join(files)}")
    status, printed = called([*command, "--continue-on-collection-errors", *files], variables, session.left * _TESTS)
    lines = printed.rstrip().splitlines() or ["nothing was printed"]
    session.write("tests.txt", printed + ("" if status is not None else "\nended: no time was left"))
    session.say(f"tests: exit status {status}, {lines[-1].strip('= ')}")
    return status == 0


def benchmarks(
    session: Session, models: Sequence[str], only: Sequence[str], options: Sequence[str], variables: Mapping[str, str]
) -> bool:
    """One model after the other; the tables are written after each."""
    parts: list[str] = []
    fell: list[str] = []
    for index, model in enumerate(models):
        until = time.monotonic() + max(0.0, session.left) / (len(models) - index)
        with tempfile.TemporaryDirectory() as work:
            outcomes = Contest(model, only, options, variables, Path(work), session.say).run(until)
        parts.append(f"{model}\n{table(outcomes)}")
        fell += [f"{model} {result.configuration}\n{result.failure}" for result in outcomes.values() if result.failure]
        _record(session, model, outcomes)
        session.write("benchmarks.txt", "\n\n".join([LEGEND, *parts]))
        session.write("failures.txt", "\n\n".join(fell) or "none")
        print(parts[-1], flush=True)
    return not fell


def _record(session: Session, model: str, outcomes: Mapping[str, Outcome]) -> None:
    with (session.output / "outcomes.jsonl").open("a", encoding="utf-8") as file:
        for result in outcomes.values():
            about = {
                "model": model,
                "configuration": result.configuration,
                **result.facts,
                "ms": result.times,
                "issued": result.issued,
            }
            file.write(json.dumps({**about, "failure": result.failure}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/cuda", description=__doc__)
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install what is missing from these wheels alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models, planned with little effort")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything, default 9")
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--only",
        default=",".join(CONFIGURATIONS),
        help=f"of {', '.join(CONFIGURATIONS)}, remate=BUDGET, remate-compiled=BUDGET, remate-graphs=BUDGET, "
        "remate-split=BUDGET, remate-pages=BUDGET, remate-elsewhere=BUDGET",
    )
    parser.add_argument("--no-tests", action="store_true", help="only the benchmarks")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="default: tools/bench/results/DEVICE")
    requested = parser.parse_args()
    session = Session(
        (requested.output or ROOT / "tools" / "bench" / "results" / requested.device).resolve(), requested.minutes
    )
    (session.output / "outcomes.jsonl").unlink(missing_ok=True)
    packages = ROOT / ".cuda-packages" / f"{sys.version_info.major}.{sys.version_info.minor}"
    installed = install(packages, requested.wheels, session.left * _TESTS)
    variables = environment(packages)
    status, about = called([sys.executable, "-c", _ABOUT], variables, session.left)
    smi = called(["nvidia-smi"], variables, 20)[1] if shutil.which("nvidia-smi") else "there is no nvidia-smi"
    session.write("environment.txt", f"{about}\n{installed}\n\n{smi}")
    session.say(about.strip())
    session.say(installed)
    if status != 0 or (requested.device == "cuda" and "no CUDA device" in about):
        session.say("error: PyTorch does not run on a GPU here; --device cpu tries the command itself")
        return 2
    fine = requested.no_tests or tests(session, variables)
    options = ["--device", requested.device, *(["--quick"] if requested.quick else [])]
    fine &= benchmarks(session, requested.models.split(","), requested.only.split(","), options, variables)
    session.say(f"wrote {session.output}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
