"""CPU time of solves by HiGHS beside the visits that the planner counts for them (`remate.strategy.milp.highs.visits`).

    python -m tools.bench.solver_work FOLDER   # FOLDER: as for tools.bench.instances

Solves published graphs in their own order, and fits the three factors of each kind of solve again to what these solves
took. A visit is 0.25 µs. Writes `results/solver_work.txt`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls

from remate.standalone_graphs import read, solve
from remate.strategy.deadline import Deadline
from remate.strategy.milp.highs import DEFAULT, HighsModel, Result, SolveOptions, visits

from .text import environment, table

RESULTS = Path(__file__).parent / "results" / "solver_work.txt"
CASES = (
    ("transformer.a72", "90%"),
    ("VGG16_256_224x224x3_train_nx", "90%"),
    ("resnet50.a72", "60%"),
    ("vgg_unet_32_416x608x3_train_nx", "80%"),
    ("random_layered_n100_w0.27_nlv0.75_ed0.2_scd0.14", "90%"),
    ("random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14", "80%"),
)
VISIT = 0.25e-6  # seconds
LEAST = 2e-4  # seconds below which the error of a solve weighs no more
NOTE = """Solves of `remate solve --keep-order` on published graphs. Counted: visits times 0.25 µs, as the planner counts them. Factors:
visits per solve, per row, and per simplex iteration of a search or row times simplex iteration of a relaxation, fitted to
these solves. Half, nine of ten: CPU time and the counted time differ by less than this factor. Dense models of
10,000 rows and more take longer than the fit. The machine was busy with other work."""


def _measured(folder: Path) -> list[tuple[bool, int, int, float]]:
    record: list[tuple[bool, int, int, float]] = []
    solve_model = HighsModel.solve

    def timed(self: HighsModel, deadline: Deadline, options: SolveOptions = DEFAULT) -> Result:
        began, spent = time.process_time(), deadline.spent
        result = solve_model(self, deadline, options)
        if deadline.spent > spent:
            iterations = max(0, self.highs.getInfo().simplex_iteration_count)
            record.append((self.relaxes(options), self.rows, iterations, time.process_time() - began))
        return result

    HighsModel.solve = timed
    try:
        for name, budget in CASES:
            solve(read(next(folder.rglob(f"{name}.json"))), budget, keep_order=True)
    finally:
        HighsModel.solve = solve_model
    return record


def _row(record: list[tuple[bool, int, int, float]], *, relax: bool) -> tuple[str, ...]:
    solves = [(rows, iterations, cpu) for kind, rows, iterations, cpu in record if kind == relax]
    rows, iterations, cpu = (np.array(column, float) for column in zip(*solves, strict=True))
    columns = np.stack([np.ones_like(rows), rows, rows * iterations if relax else iterations], axis=1)
    weight = 1 / np.sqrt(np.maximum(cpu, LEAST))
    factors, _ = nnls(columns * weight[:, None], cpu / VISIT * weight)
    counted = VISIT * np.array([visits(int(r), int(i), relax=relax) for r, i, _ in solves])
    off = np.exp(np.abs(np.log((counted + LEAST) / (cpu + LEAST))))
    return (
        "relaxations" if relax else "searches",
        str(len(solves)),
        f"{cpu.sum():.2f}",
        f"{counted.sum():.2f}",
        *(f"{factor:.3g}" for factor in factors),
        f"{np.median(off):.2f}",
        f"{np.quantile(off, 0.9):.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    torch.set_num_threads(1)  # as HiGHS runs; the head of the table says so
    record = _measured(parser.parse_args().folder)
    head = ("solves", "number", "CPU s", "counted s", "per solve", "per row", "per iteration", "half", "nine of ten")
    rows = [head, _row(record, relax=True), _row(record, relax=False)]
    said = f"python -m tools.bench.solver_work; {environment()}\n{NOTE}\n\n{table(rows)}\n"
    RESULTS.write_text(said, encoding="utf-8")
    print(said)


if __name__ == "__main__":
    main()
