"""Measures the recursion along a tree decomposition on growing steps of known width (tests/planner/growing_steps).

python -m tools.bench.treewidth
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from remate.strategy import StepInstance
from remate.strategy.online.dtr import Heap, neighbourhood
from remate.strategy.online.replay import Memory, StepReplay
from remate.strategy.online.treewidth import Path as Separated
from remate.strategy.online.treewidth import separators_of
from tests.planner.growing_steps import FAMILIES, UNIT

from .text import environment, table

RESULTS = Path(__file__).parent / "results" / "treewidth.txt"
SIZES = (32, 128, 512, 1024)  # forward operations
NOTE = """Memory in values (all have the same size), the least under which a replay of the training step ends: by the recursion, which
holds separators (strategy treewidth); by the same without holding them; by DTR. w: width of the decomposition of the whole step.
levels: of halvings. share: of (w + 1) * levels, what the separators of all levels may take. runs: recomputations for each
forward operation. baseline: everything is kept. floor: proven, for any schedule. CPU: seconds of all searches of a row."""
HEAD = (
    "step",
    "n",
    "w",
    "levels",
    "baseline",
    "floor",
    "recursion",
    "share",
    "runs",
    "not held",
    "runs",
    "dtr",
    "runs",
    "CPU",
)


def least(instance: StepInstance, memory: Callable[[], Memory]) -> tuple[int, int]:
    """Return the least budget in bytes under which a replay ends, to a tenth of a value, and its recomputations."""
    low, high, runs = instance.floor - 1, instance.baseline.peak, 0
    while high - low > 1:
        middle = (low + high) // 2
        recomputes = StepReplay(instance.problem, middle, memory(), lambda: False).run()
        low, high = (middle, high) if recomputes is None else (low, middle)
        runs = runs if recomputes is None else len(recomputes)
    return high, runs


def row(family: str, n: int) -> tuple[str, ...]:
    """Return the row of one step, for the recursion and for other policies."""
    before, instance = time.process_time(), StepInstance(FAMILIES[family](n))
    separators, around = instance.view(separators_of), instance.view(neighbourhood)
    memories: tuple[Callable[[], Memory], ...] = (
        lambda: Separated(separators),
        lambda: Separated(separators, holds=False),
        lambda: Heap(around),
    )
    forward, levels = len(instance.problem.forward), max(separators.depth) + 1
    cells = list[str]()
    for number, memory in enumerate(memories):
        nbytes, runs = least(instance, memory)
        cells.append(f"{nbytes / UNIT:.1f}")
        cells += [f"{nbytes / UNIT / ((separators.width + 1) * levels):.2f}"] * (number == 0)
        cells.append(f"{runs / forward:.1f}")
    kept = (f"{instance.baseline.peak / UNIT:.0f}", f"{instance.floor / UNIT:.0f}")
    cpu = f"{time.process_time() - before:.1f}"
    return (family, str(forward), str(separators.width), str(levels), *kept, *cells, cpu)


def main() -> None:
    """Write the table."""
    rows: list[tuple[str, ...]] = [HEAD]
    for family in FAMILIES:
        for n in SIZES:
            rows.append(row(family, n))
            print(*rows[-1], flush=True)
    RESULTS.write_text(f"python -m tools.bench.treewidth; {environment()}\n{NOTE}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
