"""Trains the scripts of examples/scripts with schedules: python -m tools.bench.scripts -o tools/bench/results/scripts.txt

Each script runs unchanged, as by `remate train --budget 60%`, which plans and measures the peaks of an eager and of a
scheduled step. Then it runs again with the planned file, and iterations alternate between the schedule and the model's
own forward: gradients are the same, so the training is too. An iteration ends with the step of the last optimizer, or
with the next call if there is none. Times are of all iterations but the first two of each kind: the ratio of the
medians, and the quartiles of the ratios of neighbours. Peaks are the largest of any step, in a run without schedules and
in a run with them. lines: those to add for `remate.auto`; `remate train` needs none. as it is: no schedule needs less
memory.
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

    def stepped(self, optimizer: Optimizer, *_: object) -> None:
        """End an iteration after the step of the last optimizer."""
        if id(optimizer) not in self._last:
            self._last.append(id(optimizer))
        if id(optimizer) == self._last[-1]:
            self.ended()

    def ended(self) -> None:
        """End an iteration, and begin the next one."""
        now = time.thread_time()
        if self._began is not None:
            self.times[self.scheduled].append(now - self._began)
        self._began, self.scheduled = now, not self.scheduled


def run(script: Path, file: Path, arguments: Sequence[str], **options: object) -> Trained:
    """Run a script as `remate train --file` does, and return the results of its modules."""
    trained = Trained({**OPTIONS, **options}, file)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), Watch(trained):
        warnings.simplefilter("ignore")
        status = run_script(str(script), list(arguments))
    assert status == 0, f"{script.name}: exit status {status}"
    return trained


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
        return run(script, file, LONGER[script.stem]).reports, seconds


def largest_peaks(script: Path, file: Path, scheduled: bool) -> dict[str, int]:
    """Return the largest peak of a step in bytes, by module.

    Args:
        script: The script.
        file: The planned file.
        scheduled: Whether schedules run the steps.
    """

    def wants_memory(steps: StepsTaken, by_schedule: bool) -> bool:
        return not by_schedule or bool(steps._by_schedule)  # the first scheduled step may plan

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(StepsTaken, "wants_memory", wants_memory))
        if not scheduled:
            stack.enter_context(mock.patch.object(Trained, "_take"))
        modules = run(script, file, LONGER[script.stem], verify="never")._all
    peaks: dict[str, int] = {}
    for module in modules:
        kinds = module.steps._by_schedule if scheduled else module.steps._eager
        if measured := [taken.peak for taken in kinds.values() if taken.peak is not None]:
            peaks[module.name] = max(measured)
    return peaks


def alternated(script: Path, file: Path) -> Iterations:
    """Train with the planned file and measure iterations."""
    iterations = Iterations()
    scheduled = Auto.__call__
    has_optimizer = "optim" in script.read_text(encoding="utf-8")

    def call(auto: Auto, args: tuple[object, ...], kwargs: dict[str, Any]) -> object:
        if auto.plain.training and not has_optimizer:
            iterations.ended()
        if iterations.scheduled or auto._scheduled is None:
            return scheduled(auto, args, kwargs)
        return auto.plain.forward(*args, **kwargs)

    handle = register_optimizer_step_post_hook(iterations.stepped)
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
            eager, ours = (largest_peaks(script, file, scheduled) for scheduled in (False, True))
        for n, each in enumerate(reports):
            once = (str(lines), f"{sum(seconds):.1f}", ratio) if n == 0 else ("–", "–", "–")
            row = (script.stem, each.name, *once[:2], *_peaks(each, eager[each.name], ours.get(each.name)), once[2])
            print("  ".join(row), file=sys.stderr, flush=True)
            yield row


def _peaks(module: TrainingReport, eager: int, ours: int | None) -> tuple[str, str, str]:
    """Return the peak of an eager step, that of a scheduled one, and their ratio, as text."""
    if module.outcome.needless or ours is None:
        return size(eager), "as it is", "–"
    return size(eager), size(ours), f"{ours / eager:.2f}"


if __name__ == "__main__":
    report("scripts", __doc__, lambda: list(rows()))
