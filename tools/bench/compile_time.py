"""Measures compile time of torch.compile and of a schedule with the compiled engine, up to the end of the first step.

    python -m tools.bench.compile_time [gpt2,resnet18,unet] [--update]

Cold: in a process with an empty TORCHINDUCTOR_CACHE_DIR. Inductor's precompiled header is elsewhere, and is built
before. Warm: in a second process with the cache of the first. Figures are CPU seconds of the process and its children
(mostly the C++ compiler), without building the model. They include the step, which takes well under a second. The
schedule file is planned beforehand by another process (60 % of the baseline peak, or 100 % if no schedule is below).
Nothing compiles in parallel, so on an idle machine these are about wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import remate
from remate_runtime import apply
from remate_runtime.staleness import training_step

from .subjects import SUBJECTS
from .text import environment, table

RESULTS = Path(__file__).parent / "results" / "compile_time.txt"
HEAD = ("model", "torch.compile, cold", "warm", "remate compiled, cold", "warm")
MODELS = "gpt2,resnet18,unet"
_BUDGET = "60%"
_WITHOUT_RECOMPUTES = "100%"


def taken(name: str, schedule: str) -> float:
    """Return CPU seconds of this process up to the end of the first step. `schedule` is a path, or "" for torch.compile."""
    model, args, kwargs = SUBJECTS[name].build()
    start = _cpu()
    compiled: Any = apply(model, schedule, engine="compiled") if schedule else torch.compile(model)
    training_step(compiled, args, kwargs)
    return _cpu() - start


def _cpu() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def row(name: str) -> tuple[str, ...]:
    model, args, kwargs = SUBJECTS[name].build()
    try:
        schedule = remate.plan(model, args, kwargs, budget=_BUDGET, cost="cpu")
    except remate.InfeasibleError:
        schedule = remate.plan(model, args, kwargs, budget=_WITHOUT_RECOMPUTES, cost="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "schedule.json")
        schedule.save(path)
        cells = [name]
        for given, cache in (("", "theirs"), (path, "ours")):
            cells += [f"{_in_a_process(name, given, os.path.join(folder, cache)):.1f} s" for _ in ("cold", "warm")]
        return tuple(cells)


def _in_a_process(name: str, schedule: str, cache: str) -> float:
    command = [sys.executable, "-m", "tools.bench.compile_time", "--first-step", name, "--schedule", schedule]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=1800)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print a row per model after its measurement; with --update, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default=MODELS, help=f"of {', '.join(SUBJECTS)}, default {MODELS}")
    parser.add_argument("--update", action="store_true", help="write results/compile_time.txt")
    parser.add_argument("--first-step", metavar="MODEL", help=argparse.SUPPRESS)  # command of a measured process
    parser.add_argument("--schedule", default="", help=argparse.SUPPRESS)
    requested = parser.parse_args()
    torch.set_num_threads(1)
    if requested.first_step:
        print(taken(requested.first_step, requested.schedule))
        return
    torch.compile(lambda x: x + 1)(torch.zeros(64))  # builds the header
    rows = _stored() if requested.update else {}
    for name in requested.models.split(","):
        rows[name] = row(name)
        print("  ".join(rows[name]), flush=True)
        if requested.update:
            RESULTS.write_text(f"{environment()}, {_today()}\n\n{table([HEAD, *rows.values()])}\n", encoding="utf-8")
    sys.stdout.write(f"{table([HEAD, *rows.values()])}\n")


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def _stored() -> dict[str, tuple[str, ...]]:
    """Return rows of earlier runs by model, because a run may measure only some models."""
    if not RESULTS.exists():
        return {}
    rows = [re.split(r"\s{2,}", line.strip()) for line in RESULTS.read_text(encoding="utf-8").splitlines()[4:]]
    return {cells[0]: tuple(cells) for cells in rows}


if __name__ == "__main__":
    main()
