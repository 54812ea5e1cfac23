"""Measures the cost of reading hostile files: all families of tools.fuzz.bombs, and all files of the corpus.

    python -m tools.bench.hostile [--sizes 1,8] [--only NAME ...]

A fresh process opens and checks each file and prints its faults (without the published JSON Schema, whose work `check`
limits). Seconds are CPU seconds; memory is the growth of the process's peak. The last columns are shares of the limits
`allowed_seconds` and `allowed_bytes` of tools.fuzz.bombs, which depend on the file's size and contents. The exit
status is 1 if a file exceeds a limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.fuzz.bombs import FAMILIES, allowed_bytes, allowed_seconds

from .text import table

_CORPUS = Path(__file__).parents[2] / "schema/corpus"


def measure(path: Path) -> dict[str, Any]:
    """Return the cost of one file in its own process."""
    command = [sys.executable, "-m", "tools.bench.hostile_worker", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if ran.returncode:
        return {"answer": f"crash: {ran.stderr.strip().splitlines()[-1:]}", "seconds": float("inf"), "bytes": 0}
    return json.loads(ran.stdout)


def row(name: str, path: Path) -> tuple[list[str], bool]:
    measured, size = measure(path), path.stat().st_size
    share = measured.get("expanded", 0)
    time, memory = measured["seconds"] / allowed_seconds(size, share), measured["bytes"] / allowed_bytes(size, share)
    shown = [
        f"{size / 1e6:.2f}",
        f"{measured['seconds']:.2f}",
        f"{measured['bytes'] / 1e6:.0f}",
        f"{time:.2f}",
        f"{memory:.2f}",
    ]
    return [name, *shown, measured["answer"]], max(time, memory) <= 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,8", help="megabytes of each family, default 1,8")
    parser.add_argument("--only", nargs="+", choices=sorted(FAMILIES), help="families; default: all, and the corpus")
    args = parser.parse_args()
    rows, good = [["family", "MB", "CPU s", "peak MB", "of time", "of memory", "answer"]], True
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only or FAMILIES:
            for size in map(float, args.sizes.split(",")):
                path = Path(folder) / "bomb.json"
                path.write_bytes(FAMILIES[name](int(size * 1e6)))
                line, within = row(name, path)
                good = good and within
                rows.append(line)
                print("  ".join(line), file=sys.stderr, flush=True)
    if not args.only:
        worst = max((row(f"corpus: {path.stem}", path) for path in sorted(_CORPUS.glob("*valid/*.json"))), key=_cost)
        rows.append(worst[0])
        good = good and worst[1]
    print(table(rows))
    return 0 if good else 1


def _cost(measured: tuple[list[str], bool]) -> float:
    return float(measured[0][4]) + float(measured[0][5])


if __name__ == "__main__":
    sys.exit(main())
