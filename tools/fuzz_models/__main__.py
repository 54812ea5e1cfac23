"""`python -m tools.fuzz_models {operations,sizes,live,changes}`: see tools/fuzz_models/README.md.

Exit status 1: a difference from eager PyTorch without an error or a warning, or an exception that remate does not raise
deliberately.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from . import changes, live, operations, sizes
from .case import COMPILED, WAYS, Case, Generator, Options
from .shrink import shrunk
from .totals import Totals
from .trial import Finding

SUBJECTS: dict[str, Generator] = {
    "operations": operations.generated,
    "sizes": sizes.generated,
    "live": live.generated,
    "changes": changes.generated,
}
_COUNT = 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.engine in COMPILED and (given.autocast or given.dtype != "float64"):
        parser.error("compiled steps round differently: compare them in float64 (--dtype float64)")
    if given.ways and given.subject != "operations":
        parser.error("--ways is for the subject operations")
    torch.set_num_threads(1)  # sums are made in one order
    options = Options(getattr(torch, given.dtype), given.autocast, given.engine, frozenset(given.ways))
    totals = Totals()
    for seed in _seeds(given):
        case = SUBJECTS[given.subject](seed, options)
        source = given.model.read_text("utf-8") if given.model else case.program.source
        trial = case.run(source)
        totals.add(trial)
        if trial.finding:
            print(_report(trial.finding, seed, given, case), flush=True)
    print(totals.table())
    return 1 if totals.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz_models", description="Compare generated models with eager PyTorch."
    )
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--seed", type=int, default=0, help="that of the first model; the next ones count on")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--count", type=int, help=f"number of models (default: {_COUNT})")
    amount.add_argument("--minutes", type=float, help="begin models for so long, whatever their number")
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--autocast", action="store_true", help="plan and run under autocast to bfloat16")
    parser.add_argument("--engine", default="eager", help="the engine that runs schedules")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=[], help="other ways to run `operations` (see README)"
    )
    here = Path(tempfile.gettempdir())
    parser.add_argument("--keep", type=Path, default=here, metavar="DIR", help="where models of findings go")
    parser.add_argument("--model", type=Path, metavar="FILE", help="run this file in place of the generated model")
    return parser


def _seeds(given: argparse.Namespace) -> Iterable[int]:
    if given.minutes is None:
        return range(given.seed, given.seed + (_COUNT if given.count is None else given.count))
    end = time.monotonic() + 60 * given.minutes
    return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(given.seed))


def _report(finding: Finding, seed: int, given: argparse.Namespace, case: Case) -> str:
    """Write the model and its shrunk form, and say how to run both again."""
    command = _command(given, seed)
    lines = [f"{finding.kind}: {given.subject} {seed}: {finding.detail}", f"  again: {command}"]
    if given.model is None:
        small = shrunk(case, finding)
        given.keep.mkdir(parents=True, exist_ok=True)
        for program, ending, how in ((case.program, "", ""), (small, "_small", " --model {}")):
            path = given.keep / f"{given.subject}_{seed}{ending}.py"
            again = command + how.format(path)
            path.write_text(f"# {finding.kind}: {finding.detail!r}\n# {again}\n{program.source}", "utf-8")
            lines.append(f"  {'smaller' if ending else 'model'}: {path}")
    return "\n".join(lines)


def _command(given: argparse.Namespace, seed: int) -> str:
    words = [f"python -m tools.fuzz_models {given.subject} --seed {seed} --count 1"]
    words += [f"--dtype {given.dtype}"] if given.dtype != "float32" else []
    words += ["--autocast"] if given.autocast else []
    words += [f"--engine {given.engine}"] if given.engine != "eager" else []
    words += ["--ways", *given.ways] if given.ways else []
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(main())
