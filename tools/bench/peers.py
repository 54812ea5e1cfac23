"""Compares PyTorch's own ways to save memory with remate. All ways for a model alternate in one process.

    python -m tools.bench.peers gpt2                          # measure a model, and store its figures
    python -m tools.bench.peers unet --only compile,remate-60-compiled   # measure some rows again
    python -m tools.bench.peers --write                       # table and picture of all stored figures

Peak: most bytes of a step beside parameters, buffers, inputs and optimizer state; outputs, gradients and workspace
count. Time: CPU time of forward and backward over that of eager in the same round, so that other load affects both;
median and interquartile range. "remate compiled at a peak" is planned with cost="compiled" and that peak as its
budget. Ways that took turns are compared round by round: × is our time over theirs, median and quartiles; a tie
includes 1. Not dominated: torch.compile itself on the U-Net, a close call (of nine rounds before these, .824 against
.843 at 109 MiB and .801 at 94). torch.compile keeps the weights of convolutions as forward laid them out. A schedule
keeps no copies of parameters and lays them out again in backward. These kernels take .3% of a step; the cause of the
rest is unknown. torch's own automatic selective checkpointing (torch.distributed._tools.sac_ilp, 2.13) is not among
the rows: its estimators ask for CUDA events ("Tried to instantiate dummy base class Event" on the CPU).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from remate.step_measurement.allocator import compare_times, peak_bytes
from remate_runtime import predicted_peak
from remate_runtime.errors import RemateError
from remate_runtime.staleness import clear_gradients, training_step

from .peers_report import TABLE, Measured, Model, kept, picture, report, store
from .subjects import SUBJECTS
from .text import environment
from .ways import WAYS

_ROUNDS = 9
_STEPS_TO_WARM_UP = 2  # torch.compile compiles in the first steps


class _Ready(msgspec.Struct):
    """A way whose step runs. `predicted` is in bytes; None without a prediction."""

    step: Callable[[], Any]
    peak: int
    predicted: int | None


def measure(name: str, only: list[str], rounds: int) -> Model:
    """Return the figures of a model. `only` lists ways, with "eager" first."""
    ready: dict[str, _Ready] = {}
    failed: dict[str, str] = {}
    for key in only:
        try:
            ready[key] = _made_ready(name, key, {other: prepared.peak for other, prepared in ready.items()})
            print(f"{name} {key}: {ready[key].peak} bytes", file=sys.stderr, flush=True)
        except (RemateError, RuntimeError) as error:
            failed[key] = str(error).splitlines()[0]
            print(f"{name} {key}: {failed[key]}", file=sys.stderr, flush=True)
    times = compare_times({key: prepared.step for key, prepared in ready.items()}, rounds, clock=time.process_time_ns)
    tree, where = _tree(), environment()
    rows = {key: Measured(tree=tree, failed=why) for key, why in failed.items()}
    for key, prepared in ready.items():
        low, high = times.quartiles[key]
        figures: dict[str, Any] = {"peak": prepared.peak, "predicted": prepared.predicted}
        figures |= {
            "ns": times.median[key],
            "time": times.ratio[key],
            "low": low,
            "high": high,
            "rounds": rounds,
            "each": times.rounds[key],
        }
        rows[key] = Measured(tree=tree, **figures)
    return Model(name, SUBJECTS[name].describe, where, rows)


def _made_ready(name: str, key: str, peaks: Mapping[str, int]) -> _Ready:
    """peaks: of ways that are ready."""
    model, args, kwargs = SUBJECTS[name].build()
    way = WAYS[key]
    if way.at and way.at not in peaks:
        raise RuntimeError(f"its budget is the peak of {way.at}, which is not known")
    requested = {"budget": peaks[way.at]} if way.at else {}
    prepared = way.prepare(model, SUBJECTS[name], args, kwargs, **requested)
    step = partial(training_step, prepared, args, kwargs)
    for _ in range(_STEPS_TO_WARM_UP):
        step()
    clear_gradients(prepared, args, kwargs)
    predicted = predicted_peak(prepared) if key.startswith("remate") else None
    peak = peak_bytes(step)
    clear_gradients(prepared, args, kwargs)
    return _Ready(step, peak, predicted)


def _tree() -> str:
    """Return the measured commit, with a + if files had changed."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../../remate", "../../runtime")
    return git("rev-parse", "--short=9", "HEAD") + ("+" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--only", default=",".join(WAYS), help=f"of {', '.join(WAYS)}; the other rows stay")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"in which all take turns, default {_ROUNDS}")
    parser.add_argument("--write", action="store_true", help="write the table and the picture of all stored figures")
    chosen = parser.parse_args()
    unknown = {*chosen.models} - {*SUBJECTS} | {*chosen.only.split(",")} - {*WAYS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = (
        1024  # models of one class
    )
    only = ["eager", *(key for key in chosen.only.split(",") if key != "eager")]
    for name in chosen.models:
        store(measure(name, only, chosen.rounds), WAYS)
        print(report({name: kept(SUBJECTS)[name]}, WAYS))
    if chosen.write:
        models: Mapping[str, Model] = kept(SUBJECTS)
        TABLE.write_text((__doc__ or "").split("\n\n")[-1] + "\n" + report(models, WAYS), encoding="utf-8")
        picture(models, WAYS)


if __name__ == "__main__":
    main()
