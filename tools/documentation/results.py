"""Reads the figures in `tools/bench/results`, for the tables of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tools" / "bench" / "results"

Table = list[list[str]]


def lines_of(name: str) -> list[str]:
    """The lines of a file of results."""
    return (RESULTS / name).read_text(encoding="utf-8").splitlines()


def records_of(name: str) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file of results."""
    return [json.loads(line) for line in lines_of(name)]


def object_of(name: str) -> dict[str, Any]:
    """The object in a JSON file of results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def text_tables(name: str) -> list[Table]:
    """Every table of a text file: a head, a rule of dashes, and rows up to an empty line. Two spaces separate cells."""
    lines, tables = lines_of(name), []
    for at, line in enumerate(lines):
        if at and line.startswith("---") and set(line) == {"-"}:
            head = cells(lines[at - 1])
            rows = []
            for row in lines[at + 1 :]:
                if not row.strip():
                    break
                rows.append(cells(row))
            width = max([len(head), *map(len, rows)])
            tables.append([[""] * (width - len(head)) + head, *rows])
    return tables


def cells(line: str) -> list[str]:
    """The cells of a line of a text table."""
    return re.split(r"\s{2,}", line.strip())


def markdown(table: Table) -> str:
    """A table in Markdown. Its first row is the head."""
    head, *rows = table
    width = len(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * width]
    lines += ["| " + " | ".join(row + [""] * (width - len(row))) + " |" for row in rows]
    return "\n".join(re.sub(r" +\|", " |", line) for line in lines)
