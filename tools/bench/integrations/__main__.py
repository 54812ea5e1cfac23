"""The README's table of integrations. python -m tools.bench.integrations   # minutes; writes results/integrations.txt and the table"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

from remate_runtime.support.quantities import size

from ..text import environment, table
from .distributed import CASES, outcomes
from .loops import LOOPS
from .outcome import outcome

RESULTS = Path(__file__).parents[1] / "results"
README = Path(__file__).parents[3] / "README.md"


def main() -> int:
    torch.set_num_threads(1)
    rows = [("loop", "bitwise", "peak of a step", "budget", "baseline")]
    for loop in LOOPS:
        missing = [name for name in loop.needs if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{', '.join(missing)} is not installed: {loop.name} cannot be run", file=sys.stderr)
            return 1
        found = outcome(loop)
        peak, budget, baseline = (size(nbytes) for nbytes in (found.peak, found.budget, found.baseline))
        rows.append((loop.name, "yes" if found.bitwise else "NO", peak, budget, baseline))
        print(rows[-1], file=sys.stderr, flush=True)
    ranks = [("loop on 2 ranks", "bitwise", "peak of a step", "without a schedule")]
    for name, found in outcomes(tuple(CASES)).items():
        ranks.append((name, "yes" if found.bitwise else "NO", size(found.peak), size(found.eager)))
    RESULTS.mkdir(exist_ok=True)
    text = f"{environment()}\n\n{table(rows)}\n\n{table(ranks)}\n"
    (RESULTS / "integrations.txt").write_text(text, encoding="utf-8")
    written = README.read_text(encoding="utf-8")
    for found in (rows, ranks):
        written = with_table(written, found)
    README.write_text(written, encoding="utf-8")
    print(text)
    return 0


def with_table(text: str, rows: list[tuple[str, ...]]) -> str:
    """The README with these rows in place of those of the table that has the same head."""
    head = _line(rows[0])
    lines = text.split("\n")
    begin = lines.index(head)
    end = lines.index("", begin)
    made = [head, "|" + "---|" * len(rows[0]), *map(_line, rows[1:])]
    return "\n".join([*lines[:begin], *made, *lines[end:]])


def _line(row: tuple[str, ...]) -> str:
    return f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.exit(main())
