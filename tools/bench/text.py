"""Plain tables."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from remate.step_measurement.allocator import Times


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns, the first to the left and the others to the right, with a rule under the head."""
    full = [row for row in rows if not (len(row) > 2 and not any(row[2:]) and row[1])]
    widths = [max((len(row[i]) for row in full), default=0) for i in range(len(rows[0]))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines[:1]))
    return "\n".join(lines)


def environment() -> str:
    threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    return f"torch {torch.__version__}, {platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {threads}"


def selection(description: str | None, names: Collection[str], what: str) -> tuple[list[str], Path | None]:
    """Return the names that a command's arguments select, by default all, and the file that it writes, if any."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"{what}s", nargs="*", default=list(names), metavar=what.upper(), help=f"of {', '.join(names)}")
    parser.add_argument("-o", "--output", type=Path, help="write the text to this file, too")
    given = parser.parse_args()
    chosen: list[str] = getattr(given, f"{what}s")
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"no {what} {', '.join(unknown)}; one of {', '.join(names)}")
    return chosen, given.output


def report(name: str, description: str | None, rows: Callable[[], Sequence[Sequence[str]]]) -> None:
    """Run a benchmark of one table: print it, and write it to the file that the command's arguments name, if any.

    Args:
        name: Name of the benchmark's module.
        description: Its docstring.
        rows: Returns the rows, of which the first is the head.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    output: Path | None = parser.parse_args().output
    torch.set_num_threads(1)
    text = f"python -m tools.bench.{name}; {environment()}\n\n{table(rows())}\n"
    print(text)
    if output:
        output.write_text(text, encoding="utf-8")


def ratio(times: Times, name: str) -> str:
    """Return the median ratio of a function to the first one, with quartiles."""
    low, high = times.quartiles[name]
    return f"{times.ratio[name]:.2f} ({low:.2f}–{high:.2f})"
