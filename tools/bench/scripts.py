"""Trains the scripts of examples/scripts with schedules: python -m tools.bench.scripts -o tools/bench/results/scripts.txt

Each script runs unchanged, as by `remate train --budget 60%`, which plans and measures the peaks of an eager and of a
scheduled step. Then it runs again with the planned file, and iterations alternate between the schedule and the model's
own forward: gradients are the same, so the training is too. An iteration ends with the step of the last optimizer.
Times are of all iterations but the first two of each kind: the ratio of the medians, and the quartiles of the ratios of
neighbours. lines: those to add for `remate.auto`; `remate train` needs none. as it is: no schedule needs less memory.
–: not measured, because the script has no optimizer, or no eager and scheduled steps of one size.
"""

from __future__ import annotations

import contextlib
import io
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from remate.training.script import run_script
from remate.training.state import Auto
from remate.training.steps_taken import StepsTaken
from remate.training.trained import Trained, TrainingReport
from remate.training.watch import Watch
from remate_runtime.support.quantities import size

from .text import report

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
LINE = re.compile(r"# .*remate\.auto\(")
NEEDS = {"lora": "peft", "padded": "accelerate"}
OPTIONS = {"budget": "60%", "progress": None}
LONGER = {  # arguments for iterations to measure
    **dict.fromkeys(("contrastive", "diffusion", "vision_language"), ("--steps", "40")),
    **dict.fromkeys(("lora", "padded", "recurrent", "vision"), ("--epochs", "10")),
    "gan": ("--epochs", "20"),
    "graph": ("--epochs", "40"),
    "language_model": ("--iters", "30"),
    "lbfgs": ("--steps", "40"),
    "transfer": ("--epochs", "8"),
}
HEAD = ("script", "model", "lines", "plan CPU s", "eager peak", "peak", "ratio", "time / eager")


class Iterations:
    """Alternates iterations between the schedule and the model's own forward, and measures both.

    Attributes:
        scheduled: Whether the schedule runs the current iteration.
        times: CPU seconds of iterations, by `scheduled`.
    """

    def __init__(self) -> None:
        self.scheduled = True
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self._last: list[int] = []  # optimizers in the order of their first steps
        self._began: float | None = None

    def ended(self, optimizer: Optimizer, *_: object) -> None:
        if id(optimizer) not in self._last:
            self._last.append(id(optimizer))
        if id(optimizer) == self._last[-1]:
            now = time.thread_time()
            if self._began is not None:
                self.times[self.scheduled].append(now - self._began)
            self._began, self.scheduled = now, not self.scheduled


def run(script: Path, file: Path, arguments: Sequence[str] = ()) -> list[TrainingReport]:
    """Run a script as `remate train --file` does, and return the result for each of its modules."""
    trained = Trained(OPTIONS, file)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), Watch(trained):
        warnings.simplefilter("ignore")
        status = run_script(str(script), list(arguments))
    assert status == 0, f"{script.name}: exit status {status}"
    return trained.reports


def planned(script: Path, file: Path) -> tuple[list[TrainingReport], list[float]]:
    """Plan the modules of a script. Returns their results and the CPU seconds of each plan."""
    seconds: list[float] = []
    decide = Auto._decide

    def timed(auto: Auto, *call: Any) -> None:
        began = time.process_time()
        decide(auto, *call)
        if auto.outcome.planned:
            seconds.append(time.process_time() - began)

    with mock.patch.object(Auto, "_decide", timed):
        return run(script, file, LONGER[script.stem]), seconds


def alternated(script: Path, file: Path) -> Iterations:
    """Train with the planned file and measure iterations."""
    iterations = Iterations()
    scheduled = Auto.__call__

    def call(auto: Auto, args: tuple[object, ...], kwargs: dict[str, Any]) -> object:
        if iterations.scheduled or auto._scheduled is None:
            return scheduled(auto, args, kwargs)
        return auto.plain.forward(*args, **kwargs)

    handle = register_optimizer_step_post_hook(iterations.ended)
    try:
        with (
            mock.patch.object(Auto, "__call__", call),
            mock.patch.object(StepsTaken, "wants_memory", return_value=False),
        ):
            run(script, file, LONGER[script.stem])
    finally:
        handle.remove()
    return iterations


def time_ratio(script: Path, file: Path) -> str:
    """Return the time of scheduled iterations over that of eager ones, as text."""
    times = alternated(script, file).times
    ours, eager = times[True][2:], times[False][2:]
    pairs = [a / b for a, b in zip(ours, eager, strict=False)]
    if len(pairs) < 4:  # the script has no optimizer
        return "–"
    low, _, high = statistics.quantiles(pairs, n=4)
    return f"{statistics.median(ours) / statistics.median(eager):.2f} ({low:.2f}–{high:.2f})"


def rows() -> Iterator[tuple[str, ...]]:
    yield HEAD
    for script in sorted(SCRIPTS.glob("*.py")):
        if script.stem in NEEDS and find_spec(NEEDS[script.stem]) is None:
            print(f"{NEEDS[script.stem]} is not installed: {script.stem} cannot be run", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "schedule.json"
            reports, seconds = planned(script, file)
            lines = len(LINE.findall(script.read_text(encoding="utf-8")))
            ratio = time_ratio(script, file)
        for n, each in enumerate(reports):
            once = (str(lines), f"{sum(seconds):.1f}", ratio) if n == 0 else ("–", "–", "–")
            row = (script.stem, each.name, *once[:2], *_peaks(each), once[2])
            print("  ".join(row), file=sys.stderr, flush=True)
            yield row


def _peaks(module: TrainingReport) -> tuple[str, str, str]:
    """Return the peak of an eager step, that of a scheduled one, and their ratio."""
    eager, ours = module.beside.eager_peak, module.beside.peak
    before = "–" if eager is None else size(eager)
    if module.outcome.needless:
        return before, "as it is", "–"
    if eager is None or ours is None:  # no eager and scheduled steps of one size
        return before, "–" if ours is None else size(ours), "–"
    return before, size(ours), f"{ours / eager:.2f}"


if __name__ == "__main__":
    report("scripts", __doc__, lambda: list(rows()))
