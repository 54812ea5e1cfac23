"""Packs buffers with lifetimes into one block, and measures its height over the load and the CPU time.

    python -m tools.bench.addresses DIR -o tools/bench/results/addresses.txt

DIR holds instances as CSV files with the columns lower, upper and size: MiniMalloc's (github.com/google/minimalloc,
benchmarks/asplos2024; a number in a name, as in A.1048576.csv, is the maximum height), or other files in this form.
Subfolders are read, too. The checked-in examples follow, with the live ranges of the linker.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from remate.schedule_tools.analysis import open_schedule
from remate_runtime.addresses import Buffer, buffers_of, pack
from remate_runtime.errors import ScheduleError

from .text import environment, table

ROOT = Path(__file__).parents[2]
EFFORT = 1_000_000_000


def instances(folder: Path) -> Iterator[tuple[str, int, list[Buffer]]]:
    """Name, maximum height (0 if unknown) and buffers of an instance."""
    for path in sorted(folder.rglob("*.csv")):
        with path.open(encoding="utf-8") as file:
            rows = [Buffer(int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(file)]
        capacity = path.name.split(".")[-2]
        yield path.name, int(capacity) if capacity.isdecimal() else 0, rows
    for path in sorted((ROOT / "examples").glob("*.json")):
        with suppress(ScheduleError):  # skip other files
            yield f"examples/{path.name}", 0, list(buffers_of(open_schedule(str(path)).linked))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--effort", type=int, default=EFFORT)
    parser.add_argument("-o", "--output", type=Path)
    requested = parser.parse_args()
    rows = [("", "buffers", "load", "height", "height / load", "within", "CPU s")]
    for name, capacity, buffers in instances(requested.folder):
        start = time.process_time()
        packing = pack(buffers, requested.effort)
        seconds = time.process_time() - start
        within = "" if not capacity else f"{capacity:,}" if packing.height <= capacity else f"not {capacity:,}"
        row = (
            f"{len(buffers):,}",
            f"{packing.load:,}",
            f"{packing.height:,}",
            f"{packing.height / packing.load:.5f}",
            within,
        )
        rows.append((name, *row, f"{seconds:.1f}"))
        print(*rows[-1], flush=True)
    text = f"{environment()}, effort {requested.effort:,}\n\n{table(rows)}\n"
    print(f"\n{text}")
    if requested.output:
        requested.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
