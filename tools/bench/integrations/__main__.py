"""Training loops with and without a schedule: python -m tools.bench.integrations   # minutes; writes
results/integrations.txt

`tools/docs --write` takes the tables of the documentation from there.
"""

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


def main() -> int:
    torch.set_num_threads(1)
    rows = [("loop", "bitwise", "peak of a step", "budget", "baseline")]
    for loop in LOOPS:
        missing = [name for name in loop.needs if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{', '.join(missing)} is not installed: {loop.name} cannot be run", file=sys.stderr)
            return 1
        result = outcome(loop)
        peak, budget, baseline = (size(nbytes) for nbytes in (result.peak, result.budget, result.baseline))
        rows.append((loop.name, "yes" if result.bitwise else "NO", peak, budget, baseline))
        print(rows[-1], file=sys.stderr, flush=True)
    ranks = [("loop on 2 ranks", "bitwise", "peak of a step", "without a schedule")]
    for name, result in outcomes(tuple(CASES)).items():
        ranks.append((name, "yes" if result.bitwise else "NO", size(result.peak), size(result.eager)))
    RESULTS.mkdir(exist_ok=True)
    text = f"{environment()}\n\n{table(rows)}\n\n{table(ranks)}\n"
    (RESULTS / "integrations.txt").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
