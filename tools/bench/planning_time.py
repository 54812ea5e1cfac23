"""Measures how long the search takes for short steps, and the gap of its schedule to the proven bound.

    python -m tools.bench.planning_time                         # all models and budgets
    python -m tools.bench.planning_time encoder gru-cells@60%   # these
    python -m tools.bench.planning_time --table                 # only write the table of the stored rows

Each row is stored in `results/planning_time.jsonl` when it is measured. Stored rows are measured again only with
--again, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import msgspec
import torch

from remate.api.plan import prepare
from remate.strategy import StepInstance

from . import low_budgets
from .low_budgets import Row, measured
from .short_step_models import MODELS
from .text import environment, table

RESULTS = Path(__file__).parent / "results"
STORE, TABLE = RESULTS / "planning_time.jsonl", RESULTS / "planning_time.txt"
BUDGETS = ("60%", "40%", "20%")
USUAL, MOST = 5.0, 30.0  # CPU seconds that a search should take, and that none may exceed
HEAD = """CPU: seconds of one search with normal effort and one thread, without capture. within 1%: seconds of it until a schedule took at
most 1% more time than the final one. Budgets are shares of the baseline's peak. Costs are those of the roofline model `cpu`.
Plan and bound: extra time in % of the baseline's. below: no schedule exists, because the budget is below the floor. none: no
schedule was found."""


def stored() -> dict[tuple[str, str], Row]:
    """Return the stored rows by model and budget."""
    return {(row.model, row.budget): row for row in low_budgets.stored(STORE)}


def instance(name: str) -> StepInstance:
    """Return the captured step of a model with costs."""
    torch.manual_seed(0)
    step = prepare(*MODELS[name](), cost="cpu")
    return StepInstance(step.captured.graph, step.parts)


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table."""
    head = (row.model, f"{row.operations:,}", row.budget)
    if row.below:
        return (*head, "below", *5 * ("",))
    cpu = f"{row.cpu:.1f}"
    if row.plan is None:
        return (*head, "none", "", "", cpu, "", "")
    figures = (f"{row.plan:.2f}", f"{row.bound:.2f}", f"{row.plan - row.bound:.2f}", cpu, f"{row.near:.1f}")
    return (*head, *figures, row.found_by)


def text(rows: list[Row]) -> str:
    """Return the table, and how many searches exceed the limits."""
    order = {name: n for n, name in enumerate(MODELS)}
    rows = sorted((row for row in rows if row.model in order), key=lambda row: (order[row.model], -row.share))
    solved = [row for row in rows if not row.below]
    over = [sum(row.cpu > limit for row in solved) for limit in (USUAL, MOST)]
    titles = ("model", "operations", "budget", "plan", "bound", "gap", "CPU", "within 1%", "strategy")
    count = f"{len(solved)} searches of {len({row.model for row in solved})} models"
    late = sum(row.near > USUAL for row in solved)
    verdict = (
        f"{count}: {over[0]} take more than {USUAL:g} CPU seconds, {over[1]} more than {MOST:g}. {late} need more than "
        f"{USUAL:g} for a schedule within 1% of the final one."
    )
    return f"{environment()}\n{HEAD}\n\n{table([titles, *map(cells, rows)])}\n\n{verdict}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(MODELS), metavar="MODEL[@BUDGET]")
    parser.add_argument("--again", action="store_true", help="measure stored rows again")
    parser.add_argument("--table", action="store_true", help="write the table without measurements")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = {} if args.again else stored()
    for case in () if args.table else args.cases:
        name, _, budget = case.partition("@")
        wanted = [each for each in ((budget,) if budget else BUDGETS) if (name, each) not in known]
        step = instance(name) if wanted else None
        for each in wanted:
            assert step is not None
            row = measured(name, each, "auto", step)
            with STORE.open("ab") as store:
                store.write(msgspec.json.encode(row) + b"\n")
            print("  ".join(cells(row)), flush=True)
    rows = list(stored().values())
    low_budgets.keep(rows, STORE)
    TABLE.write_text(f"python -m tools.bench.planning_time; {text(rows)}", encoding="utf-8")


if __name__ == "__main__":
    main()
