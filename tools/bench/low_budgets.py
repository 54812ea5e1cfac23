"""Compares plans and bounds of large networks at low budgets with the planner's targets.

    python -m tools.bench.low_budgets                             # all models with strategy auto
    python -m tools.bench.low_budgets resnet101 unet@floor        # only these
    python -m tools.bench.low_budgets --tables                    # print the stored rows

Rows in the store (`results/low_budgets.jsonl`) are measured again only with `--again`, so a table may contain several
runs. Each row is stored after its measurement.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from remate.budget import parse_budget
from remate.errors import InfeasibleError, NotApplicableError
from remate.strategy import Request, StepInstance, policy, solve

from .absent_gpu import step_on
from .low_budget_models import MODELS
from .text import environment, table

RESULTS = Path(__file__).parent / "results"
STORE, NOTES = RESULTS / "low_budgets.jsonl", RESULTS / "low_budgets_notes.txt"
FLOOR = "floor"
BUDGETS = ("80%", "60%", "40%", "20%", FLOOR)
ABOVE = 1.02  # times the floor
NEAR = 1.01  # times the time of the final schedule
_FOUND = re.compile(r"found: ([\d.]+)% more time")
TARGETS = {"80%": 0.5, "60%": 0.5, "40%": 0.5, "20%": 3.0, FLOOR: 5.0}  # gap between plan and proof, %
HEAD = f"""Budget: a share of the peak without recomputation, or {ABOVE} times the least that is proven to be needed (floor); in brackets what it
is of the peak. Plan, bound: time over that without recomputation, in %, of the step that CUDA runs on an H200, captured without
one, with costs of its roofline model (no GPU ran it); gap: between the two; aim: what it is to be at most (! : missed). again: operations that run again. CPU: seconds of one solve from nothing, one thread, normal
effort, capture not in it (aim: 60). below: the budget is below the floor, so nothing fits. The machine was busy with other
work. Rows that are not there were not run."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One solve. operations: of the step. share: of the peak without recomputation. plan, bound: % of the time without
    recomputation; plan is None where nothing was found; least: then, the smallest peak that was, as a share. below: the
    budget is below the floor. cpu: seconds; near: those until a schedule took at most 1% more time than `plan`."""

    model: str
    budget: str
    strategy: str
    operations: int
    share: float
    plan: float | None = None
    bound: float = 0.0
    again: int = 0
    cpu: float = 0.0
    found_by: str = ""
    least: float = 0.0
    below: bool = False
    near: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.budget, self.strategy


def instance(name: str) -> StepInstance:
    """A captured network with costs."""
    step = step_on("h200", MODELS[name][1]())
    return StepInstance(step.captured.graph, step.parts)


def measured(name: str, budget: str, strategy: str, known: StepInstance) -> Row:
    """Solve from scratch; the views of the step are rebuilt."""
    about = StepInstance(known.graph, known.blocks)
    base, before = about.baseline.peak, time.process_time()
    most = int(ABOVE * about.floor) if budget == FLOOR else parse_budget(budget).resolve(base)
    row = Row(name, budget, strategy, len(about.graph.operations), most / base)
    found: list[tuple[float, float]] = []  # CPU seconds, % more time

    def note(text: str) -> None:
        if match := _FOUND.match(text):
            found.append((time.process_time() - before, float(match[1])))

    if most < about.floor:
        return msgspec.structs.replace(row, below=True)
    try:
        solution = solve(about, Request(most), policy(strategy), progress=note)
    except (InfeasibleError, NotApplicableError) as error:
        least = error.smallest / base if isinstance(error, InfeasibleError) else 0.0
        return msgspec.structs.replace(row, least=least, cpu=time.process_time() - before)
    plan, bound = (100 * (total / solution.baseline_time - 1) for total in (solution.time, solution.lower_bound))
    return msgspec.structs.replace(
        row,
        plan=plan,
        bound=bound,
        again=len(solution.recomputes),
        cpu=time.process_time() - before,
        found_by=solution.strategy,
        near=next((cpu for cpu, percent in found if 100 + percent <= NEAR * (100 + plan)), 0.0),
    )


def stored(store: Path = STORE) -> list[Row]:
    """Return the latest measurement of each row."""
    lines = store.read_bytes().splitlines() if store.exists() else []
    rows = (msgspec.json.decode(line, type=Row) for line in lines)
    return list({row.key: row for row in rows}.values())


def keep(rows: Sequence[Row], store: Path = STORE) -> None:
    """Store these rows alone."""
    store.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in sorted(rows, key=lambda row: row.key)))


def as_text(rows: Sequence[Row]) -> str:
    """The table."""
    order = {(name, budget): n for n, (name, budget) in enumerate((m, b) for m in MODELS for b in BUDGETS)}
    lines = [("model", "budget", "", "plan", "bound", "gap", "aim", "again", "CPU", "found by")]
    for row in sorted(rows, key=lambda row: (order[row.model, row.budget], row.strategy)):
        head = (row.model, row.budget, f"({100 * row.share:.1f}%)")
        if row.below:
            lines.append((*head, "below", "", "", "", "", "", ""))
        elif row.plan is None:
            lines.append((*head, "-", "", "", "", "", f"{row.cpu:.1f}", f"smallest {100 * row.least:.1f}%"))
        else:
            gap, aim = row.plan - row.bound, TARGETS[row.budget]
            figures = (f"{row.plan:.2f}", f"{row.bound:.2f}", f"{gap:.2f}", f"{aim}{'!' if gap > aim else ' '}")
            lines.append((*head, *figures, str(row.again), f"{row.cpu:.1f}", row.found_by))
    return table(lines)


def write() -> None:
    """Return the stored rows and their notes as text."""
    rows = stored()
    keep(rows)
    torch.set_num_threads(1)  # as HiGHS runs; the head says so
    models = "\n".join(f"{name}: {MODELS[name][0]}" for name in MODELS if any(row.model == name for row in rows))
    parts = [f"python -m tools.bench.low_budgets; {environment()}\n{HEAD}", models, as_text(rows)]
    notes = [NOTES.read_text(encoding="utf-8")] if NOTES.exists() else []
    (RESULTS / "low_budgets.txt").write_text("\n\n".join([*parts, *notes]).rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(MODELS), metavar="MODEL[@BUDGET]")
    parser.add_argument("--strategies", default="auto")
    parser.add_argument("--again", action="store_true", help="measure stored rows again")
    parser.add_argument("--tables", action="store_true", help="write the stored rows without measurements")
    args = parser.parse_args()
    known = set() if args.again else {row.key for row in stored()}
    for case in () if args.tables else args.cases:
        name, _, budget = case.partition("@")
        wanted = [(b, s) for b in ([budget] if budget else BUDGETS) for s in args.strategies.split(",")]
        wanted = [(b, s) for b, s in wanted if (name, b, s) not in known]
        about = instance(name) if wanted else None
        for b, strategy in wanted:
            assert about is not None
            row = measured(name, b, strategy, about)
            with STORE.open("ab") as store:
                store.write(msgspec.json.encode(row) + b"\n")
            print(as_text([row]).splitlines()[-1], flush=True)
    write()


if __name__ == "__main__":
    main()
