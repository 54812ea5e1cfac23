"""POET's instances by strategy `poet`: energy of computing and of paging, beside the published optimum.

    python -m tools.bench.poet FOLDER [NAME ...]   # FOLDER: POET's graphs as JSON, with joules of each node

Each budget is a share of the peak of the graph's own order. The published optimum is that of POET's test: ResNet-18 for
CIFAR on a Cortex-A72 with 3,000,000 bytes, which include 994,984 bytes of parameters. Joules are recomputed from the
nodes of the file, independently of the solver's figures. Writes `results/poet.txt`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from remate.errors import InfeasibleError
from remate.standalone_graphs import BareResult, read, solve

from .text import environment, table

RESULTS = Path(__file__).parent / "results" / "poet.txt"
PUBLISHED = {("resnet18_cifar.a72", 2_005_016): "7.8… + 0.001…"}
CASES: tuple[tuple[str, tuple[str | int, ...]], ...] = (
    ("linear.a72", ("70%",)),
    ("linear.m4", ("70%",)),
    ("transformer.a72", ("95%",)),
    ("transformer.m4", ("95%",)),
    ("resnet18_cifar.a72", (2_005_016, "60%")),
    ("resnet18_cifar.m4", (2_005_016, "60%")),
    ("vgg16_cifar.a72", ("60%",)),
    ("vgg16_cifar.m4", ("60%",)),
    ("vgg16.a72", ("60%",)),
    ("vgg16.m4", ("60%",)),
    ("resnet18.a72", ("60%",)),
    ("resnet18.m4", ("60%",)),
    ("resnet50.a72", ("60%",)),
    ("resnet50.m4", ("60%",)),
    ("bert.a72", ("60%",)),
    ("bert.m4", ("60%",)),
)
LIMIT = 7.6  # of the time, as published
SECONDS = 60.0  # of the integer program, on the wall
NOTE = f"""Least energy by `remate solve --strategy poet --objective energy --effort thorough --limit {LIMIT}`, at most
{SECONDS:.0f} s for the integer program on the wall. Computing, paging: joules of the schedule, by the nodes of the file.
More: energy beyond the baseline's; proven: of the program, no schedule takes less; 0 where the program is too large or has
proven nothing in time. Again, pages: numbers of recomputations and pages. Parameters are not in the budget; 2,005,016 bytes
are the 3,000,000 of the published optimum without its 994,984 bytes of parameters."""


def joules(tree: dict[str, Any], result: BareResult) -> tuple[float, float]:
    """Return the energy of computing and of paging of a result, by the nodes of the file."""
    nodes = {str(node["name"]): node for node in tree["nodes"]}
    compute = sum(nodes[name]["compute_joule"] * times for name, times in Counter(result.sequence).items())
    pages = [nodes[page.output] for page in result.pages]
    return compute, sum(node["page_in_joule"] + node["page_out_joule"] for node in pages)


def row(path: Path, budget: str | int) -> tuple[str, ...]:
    """Solve an instance for a budget."""
    tree, notes = json.loads(path.read_text()), list[str]()
    base, start = sum(node["compute_joule"] for node in tree["nodes"]), time.process_time()
    name = path.name.removesuffix(".json")
    asked = f"{budget:,}" if isinstance(budget, int) else budget
    try:
        result = solve(
            read(path),
            budget,
            "poet",
            objective="energy",
            power=tree["platform"],
            limit=LIMIT,
            effort="thorough",
            time_limit=SECONDS,
            progress=notes.append,
        )
    except InfeasibleError as error:
        return name, asked, f"{base:.6g}", "none", "", "", "", "", "", str(error).splitlines()[0]
    compute, paging = joules(tree, result)
    last = notes[-1].rpartition("at least ")[2]
    return (
        name,
        asked,
        f"{base:.6g}",
        f"{compute:.6g}",
        f"{paging:.4g}",
        f"{(compute + paging) / base - 1:.4%}",
        last if last.endswith("%") else "0%",
        str(len(result.sequence) - len(tree["nodes"])),
        str(len(result.pages)),
        f"{time.process_time() - start:.1f}",
        PUBLISHED.get((name, result.budget), "-"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all")
    args = parser.parse_args()
    head = ("instance", "budget", "baseline J", "computing J", "paging J", "more", "proven", "again", "pages", "CPU s")
    rows: list[tuple[str, ...]] = [(*head, "published J")]
    for name, budgets in CASES:
        for budget in budgets:
            if not args.names or any(name.startswith(wanted) for wanted in args.names):
                rows.append(row(args.folder / f"{name}.json", budget))
                print(*rows[-1], flush=True)
    if not args.names:
        RESULTS.write_text(f"python -m tools.bench.poet; {environment()}\n{NOTE}\n\n{table(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
