"""Formats of the commands: bytes, times, shares, tables."""

from __future__ import annotations

import html
import json
import shutil
import sys
from collections.abc import Sequence

import msgspec

from remate_runtime.support.plain_text import plain, plain_json
from remate_runtime.support.quantities import duration, overhead, size

__all__ = [
    "PARAMETERS_NOTE",
    "PEAK_NOTE",
    "SHARDS_NOTE",
    "count",
    "duration",
    "escape",
    "json_text",
    "overhead",
    "percent",
    "plain",
    "size",
    "table",
]

_LEAST = 12  # least width of a cell that is cut
PEAK_NOTE = (
    "Peak and budget: bytes the step (forward and backward) holds at its worst moment, beyond parameters, buffers,\n"
    "inputs and optimizer state. Outputs, gradients and workspace count."
)
PARAMETERS_NOTE = (
    "Peak and budget: bytes the step (forward and backward) holds at its worst moment, beyond buffers, inputs and\n"
    "optimizer state. Parameters count while they are on the device, because some are paged."
)
SHARDS_NOTE = (
    "Peak and budget: bytes the step (forward and backward) of one rank holds at its worst moment, beyond shards\n"
    "of parameters, buffers, inputs and optimizer state. Gathered parameters and FSDP2's buffers count."
)


def percent(share: float, digits: int = 2) -> str:
    """Format a share as a percentage, without a negative zero."""
    text = f"{share * 100:.{digits}f}%"
    return text[1:] if text.lstrip("-0.") == "%" and text.startswith("-") else text


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), indent: str = "") -> str:
    """Format a table with columns two spaces apart.

    On a terminal that is too narrow, the widest left-aligned cells are cut in the middle.

    Args:
        rows: Rows of cells. Cells may contain any text.
        right: Right-aligned columns.
        indent: Prefix of each line.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    widths = _narrowed(widths, right, terminal_width() - len(indent))
    lines: list[str] = []
    for row in rows:
        cells = [_cut(cell, widths[i]) for i, cell in enumerate(row)]
        cells = [c.rjust(widths[i]) if i in right else c.ljust(widths[i]) for i, c in enumerate(cells)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def terminal_width() -> int:
    """Return the width of the terminal at standard output; for a pipe or a file, there is no limit."""
    at_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if at_terminal else sys.maxsize


def _narrowed(widths: list[int], right: Sequence[int], available: int) -> list[int]:
    """Narrow the widest left-aligned column until all columns fit or none is wider than _LEAST."""
    widths = list(widths)
    free = [i for i in range(len(widths)) if i not in right]
    while free and (over := sum(widths) + 2 * (len(widths) - 1) - available) > 0:
        widest = max(free, key=widths.__getitem__)
        others = max((widths[i] for i in free if i != widest), default=0)
        least = max(_LEAST, min(others, widths[widest] - 1))
        if widths[widest] <= _LEAST:
            break
        widths[widest] = max(least, widths[widest] - over)
    return widths


def _cut(cell: str, width: int) -> str:
    """Keep the beginning and the end, which distinguish names: `transformer.h…mlp.act`."""
    if len(cell) <= width:
        return cell
    end = (width - 1) // 2
    return f"{cell[: width - 1 - end]}…{cell[len(cell) - end :]}"


def json_text(value: object) -> str:
    """Format a struct or plain data as indented ASCII JSON."""
    return plain_json(json.dumps(msgspec.to_builtins(value), indent=2))


def escape(value: object) -> str:
    """Escape text as a single line for an element or a quoted attribute of HTML or SVG."""
    return html.escape(plain(str(value)))


def count(number: int, noun: str, several: str = "") -> str:
    """Format a number with its noun: `1 operation`, `2,000 operations`.

    Args:
        number: The number.
        noun: The noun in the singular.
        several: An irregular plural.
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
