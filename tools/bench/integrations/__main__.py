"""The README's table of integrations. python -m tools.bench.integrations   # a minute; writes results/integrations.txt"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

from remate_runtime.quantities import size

from ..text import environment, table
from .distributed import CASES, outcomes
from .loops import LOOPS
from .outcome import outcome

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    torch.set_num_threads(1)
    rows = [("loop", "bitwise", "peak of a step", "budget", "keep-all")]
    for loop in LOOPS:
        missing = [name for name in loop.needs if importlib.util.find_spec(name) is None]
        if missing:
            rows.append((loop.name, f"not run: {', '.join(missing)} is not installed", "", "", ""))
            continue
        found = outcome(loop)
        peak, budget, keep_all = (size(nbytes) for nbytes in (found.peak, found.budget, found.keep_all))
        rows.append((loop.name, "yes" if found.bitwise else "NO", peak, budget, keep_all))
        print(rows[-1], file=sys.stderr, flush=True)
    for name, bitwise in outcomes(tuple(CASES)).items():
        rows.append((f"{name}, 2 ranks", "yes" if bitwise else "NO", "", "", ""))
    text = f"{environment()}\n\n{table(rows)}\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "integrations.txt").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
