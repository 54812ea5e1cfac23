"""Call every operator that a file may name with what a stranger may write, each in a process of its own.

    python -m tools.fuzz.operators [--only NAME ...] [--seconds N] [--combined N] [--most N] [-o FILE]

Calls that pass the checks of `apply` run on the CPU, in memory with a fence (fence.c) where a C compiler is there: a
read or write out of bounds ends the process, as a wrong address does. The table says what became of each operator's
calls.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from .operator_program import Program, listed
from .operator_seeds import seeds
from .operator_worker import OUTCOMES, Job, Row

FENCE, TABLE = Path(__file__).with_name("fence.c"), Path(__file__).with_name("operators.txt")


def called(programs: Mapping[str, Sequence[Program]], combined: int, most: int, seconds: float) -> list[Row]:
    """What became of these calls and their mutations, in another process.

    Args:
        programs: Calls to begin with, by operator.
        combined: Random combinations of changes of each.
        most: Calls of one operator, drawn where there would be more.
        seconds: For all of them together; operators that are left then are not called.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder) / "job", Path(folder) / "result"
        job.write_bytes(pickle.dumps(Job(dict(programs), combined, most, seconds)))
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        if fenced():
            library = Path(folder) / "fence.so"
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", FENCE, "-o", library, "-ldl"], check=True)
            settings["LD_PRELOAD"] = str(library)
        worker = [sys.executable, "-m", "tools.fuzz.operator_worker", job, result]
        subprocess.run(worker, env=settings, check=True, stdout=sys.stderr)
        return pickle.loads(result.read_bytes())


def fenced() -> bool:
    """Whether operators run in fenced memory on this system."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def table(rows: Iterable[Row]) -> str:
    """A table with one line for each operator."""
    rows = list(rows)
    width = max((len(row.name) for row in rows), default=8)
    head = (
        "Every operator that a file may name, called with what a stranger may write (python -m tools.fuzz.operators).\n"
        f"torch {torch.__version__.split('+')[0]}, CPU, {'in fenced memory' if fenced() else 'without a fence'}. "
        "refused: by a check of `apply` or torch's inference; large:\n"
        "not run, over 64 MiB; raised: torch stopped it with an exception.\n\n"
    )
    lines = [f"{'operator':{width}} " + " ".join(f"{word:>7}" for word in OUTCOMES)]
    lines += [
        f"{row.name:{width}} {' '.join(f'{n:7}' for n in row.counts)} {row.verdict}".rstrip()
        for row in sorted(rows, key=lambda row: row.name)
    ]
    total = [sum(row.counts[n] for row in rows) for n in range(len(OUTCOMES))]
    lines.append(f"{f'{len(rows)} operators':{width}} " + " ".join(f"{n:7}" for n in total))
    return head + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.operators", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these operators; the table is not written")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so many; the rest is not called")
    parser.add_argument("--combined", type=int, default=80, help="combinations of changes of each call")
    parser.add_argument("--most", type=int, default=2000, help="calls of one operator")
    parser.add_argument("-o", "--output", type=Path, default=TABLE)
    requested = parser.parse_args()
    programs = seeds(lambda line: print(line, file=sys.stderr, flush=True))
    rows = called(
        {name: programs[name] for name in requested.only or listed()},
        requested.combined,
        requested.most,
        requested.seconds,
    )
    text = table(rows)
    if requested.only:
        print(text, end="")
    else:
        requested.output.write_text(text)
    return 1 if any(row.ends for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
