"""Compares strategies on published graphs, beside the figures of their authors.

    python -m tools.bench.instances FOLDER                  # FOLDER: of graphs, those of
                                                            github.com/haoming-codes/moccasin # and those of POET as
                                                            JSON, in it or below it
    python -m tools.bench.instances FOLDER fcn_8 --budgets 90,80 --strategies checkmate,dtr,auto:kept
    python -m tools.bench.instances --tables                # what is stored, as text and as pictures
    python -m tools.bench.instances FOLDER --check 5        # solve stored cells of up to 5 CPU s again; fails if one differs

Cells in the store (`results/instances.jsonl`) are measured again only with `--again`, so a table may contain several
runs. Each cell is stored after its measurement.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import torch

from remate.errors import InfeasibleError, NotApplicableError
from remate.standalone_graphs import BareInstance, read, solve

from .instance_tables import NONE_FITS, NOT_APPLICABLE, PUBLISHED, Cell, pictures, text

RESULTS = Path(__file__).parent / "results"
STORE = RESULTS / "instances.jsonl"
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
    "hiremate",
    "anneal",
    "fastsa",
)


def measured(
    bare: BareInstance, graph: str, strategy: str, budget: int, limit: float | None = None, effort: str = "normal"
) -> Cell:
    """One strategy under one budget. With `:kept`, it keeps the given order. `limit` is in wall-clock seconds."""
    before, (name, _, kept) = _cpu(), strategy.partition(":")
    allowed = {"limit": limit or 0.0, "effort": effort}
    try:
        result = solve(bare, f"{budget}%", name, keep_order=bool(kept), time_limit=limit, effort=effort)
    except (InfeasibleError, NotApplicableError) as error:
        lacks, reason = NONE_FITS, ""
        if isinstance(error, NotApplicableError):
            lacks, reason = NOT_APPLICABLE, str(error).partition("\n")[0]
        cpu = _cpu() - before
        return Cell(graph, len(bare.nodes), budget, strategy, lacks=lacks, cpu=cpu, reason=reason, **allowed)
    return Cell(
        graph,
        len(bare.nodes),
        budget,
        strategy,
        100 * result.overhead,
        100 * result.bound,
        100 * result.peak / result.baseline_peak,
        _cpu() - before,
        len(result.sequence) - len(bare.order),
        result.reordered,
        result.stopped_by,
        **allowed,
    )


def _cpu() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def stored() -> list[Cell]:
    """Return the latest measurement of each cell."""
    lines = STORE.read_bytes().splitlines() if STORE.exists() else []
    cells = (msgspec.json.decode(line, type=Cell) for line in lines)
    return list({cell.key: cell for cell in cells}.values())


def _run(args: argparse.Namespace) -> None:
    known = set() if args.again else {cell.key for cell in stored()}
    for start, published in PUBLISHED.items():
        if args.names and not any(start.startswith(name) for name in args.names):
            continue
        for path in sorted(args.folder.rglob(f"{start}*.json")):
            bare = read(path)
            for budget in map(int, args.budgets.split(",")) if args.budgets else published:
                for strategy in args.strategies.split(","):
                    if (path.stem, budget, strategy) in known:
                        continue
                    cell = measured(bare, path.stem, strategy, budget, args.limit, args.effort)
                    with STORE.open("ab") as store:
                        store.write(msgspec.json.encode(cell) + b"\n")
                    print(cell.graph, budget, *cell.row(), flush=True)


def changed(folder: Path, cells: Iterable[Cell], names: Sequence[str] = ()) -> list[str]:
    """Solve cells again. Returns a line for each whose time, peak or bound differs; seconds may differ.

    Args:
        folder: Of graphs.
        cells: Stored cells. Those that a limit of seconds ended are not solved again.
        names: Beginnings of graphs' names; default: all.
    """
    lines: list[str] = []
    for cell in cells:
        if cell.ended or (names and not any(cell.graph.startswith(name) for name in names)):
            continue
        bare = read(next(folder.rglob(f"{cell.graph}.json")))
        again = measured(bare, cell.graph, cell.strategy, cell.budget, effort=cell.effort)
        if again.lacks != cell.lacks or again.differs(cell):
            lines.append(f"{cell.graph}, {cell.budget}%: {' '.join(cell.row())}; now {' '.join(again.row())}")
    return lines


def _tables() -> None:
    cells = stored()
    STORE.write_bytes(b"".join(msgspec.json.encode(cell) + b"\n" for cell in sorted(cells, key=lambda c: c.key)))
    torch.set_num_threads(1)  # as HiGHS runs; the head of the table says so
    (RESULTS / "instances.txt").write_text(text(cells, STRATEGIES), encoding="utf-8")
    for name, picture in pictures(cells).items():
        (RESULTS / f"instances_{name}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all")
    parser.add_argument("--budgets", default="", help="in %%, with commas; default: those of the table")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--limit", type=float, help="seconds on the wall for one solve; cells that it ended say `t`")
    parser.add_argument("--effort", default="normal", choices=("quick", "normal", "thorough"))
    parser.add_argument("--again", action="store_true", help="measure stored cells again")
    parser.add_argument("--check", type=float, metavar="S", help="solve stored cells of up to S CPU seconds again")
    parser.add_argument("--tables", action="store_true", help="write tables and pictures of the stored cells")
    args = parser.parse_args()
    if args.check is not None:
        lines = changed(args.folder, (cell for cell in stored() if cell.cpu <= args.check), args.names)
        raise SystemExit("\n".join(lines) or 0)
    if args.folder is not None:
        _run(args)
    if args.tables or args.folder is None:
        _tables()


if __name__ == "__main__":
    main()
