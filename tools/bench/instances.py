"""Strategies of the field on other people's graphs, side by side with what their authors published.

    python -m tools.bench.instances FOLDER                  # FOLDER: the graphs of github.com/haoming-codes/moccasin
    python -m tools.bench.instances FOLDER fcn_8 --budgets 90,80 --strategies checkmate,dtr,auto:kept

Time: % over running every node once, in the graph's order; "free" where the order was changed, which "kept" forbids.
Budget: % of the peak of that order. Bound: proven, of the given order. CPU: seconds of one solve from nothing, one thread,
processes that it started among them; all by normal effort. - : the strategy does not apply, or finds nothing that fits.
Published: the best of Moccasin's table and, for the networks of Checkmate, the optimum that an exact program proves. Every
sequence is held against Moccasin's own definition of memory and time before it is printed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from remate.bare import BareInstance, read, solve
from remate.errors import InfeasibleError, NotApplicableError

from .text import environment, table

# Graph by the beginning of its name: budgets in %, with the published times in %, by whom.
PUBLISHED: dict[str, dict[int, str]] = {
    "VGG16_256_224x224x3_train": {90: "1.968 optimum"},
    "fcn_8_vgg_32_416x608x3_train": {
        90: "0.0294 optimum",
        80: "0.1361 optimum",
        70: "0.8915 optimum",
        65: "1.6173 optimum",
    },
    "vgg_unet_32_416x608x3_train": {80: "1.984 optimum", 50: "6.967 optimum"},
    "segnet_32_416x608x3_train": {50: "40.66 optimum"},
    "random_layered_n100_": {90: "0.8 Moccasin", 80: "2.3 Moccasin"},
    "random_layered_n250_": {90: "0.9 Moccasin", 80: "4.9 Moccasin"},
    "random_layered_n500_": {90: "0.7 Moccasin", 80: "3.4 Moccasin"},
    "random_layered_n1000_": {
        90: "0.7 Moccasin; 0.4 FastSA, free",
        80: "3.4 Moccasin; 2.5 FastSA, free",
        70: "7.4 FastSA, free",
    },
}
STRATEGIES = (
    "auto",
    "auto:kept",
    "checkmate",
    "checkmate-approx",
    "moccasin",
    "flat",
    "rotor",
    "chen-sqrt",
    "dtr",
    "coop",
    "treewidth",
)
STRATEGIES += ("anneal", "fastsa")


class Cell(msgspec.Struct, frozen=True):
    """One solve. time, bound: % over the baseline; peak: % of its. cpu: seconds."""

    time: float
    bound: float
    peak: float
    cpu: float
    again: int
    reordered: bool


def measured(bare: BareInstance, strategy: str, budget: int) -> Cell | None:
    """One strategy under one budget, in %; None where it has nothing. strategy: with `:kept`, in the given order."""
    before, (name, _, kept) = _cpu(), strategy.partition(":")
    try:
        found = solve(bare, f"{budget}%", name, keep_order=bool(kept))
    except (InfeasibleError, NotApplicableError):
        return None
    again = len(found.sequence) - len(bare.order)
    share = 100 * found.peak / found.baseline_peak
    return Cell(100 * found.overhead, 100 * found.bound, share, _cpu() - before, again, found.reordered)


def _cpu() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def row(strategy: str, cell: Cell | None) -> tuple[str, ...]:
    if cell is None:
        return (strategy, "-", "-", "-", "-", "-")
    time = f"{cell.time:.4f}{' free' if cell.reordered else ''}"
    return (strategy, time, f"{cell.bound:.4f}", f"{cell.peak:.1f}", str(cell.again), f"{cell.cpu:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all with published figures")
    parser.add_argument("--budgets", default="", help="in %%, with commas; default: those with published figures")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    args = parser.parse_args()
    print(f"python -m tools.bench.instances; {environment()}")
    print((__doc__ or "").split("\n\n")[-1], flush=True)
    for start, published in PUBLISHED.items():
        if args.names and not any(start.startswith(name) for name in args.names):
            continue
        for path in sorted(args.folder.glob(f"{start}*.json")):
            bare = read(path)
            for budget in map(int, args.budgets.split(",")) if args.budgets else published:
                rows = [("strategy", "time", "bound", "peak", "again", "CPU")]
                rows += [row(name, measured(bare, name, budget)) for name in args.strategies.split(",")]
                print(
                    f"\n{path.stem}, {len(bare.nodes)} nodes, budget {budget}%: {published.get(budget, 'not published')}"
                )
                print(table(rows), flush=True)


if __name__ == "__main__":
    main()
