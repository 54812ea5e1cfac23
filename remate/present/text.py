"""How the commands print figures: bytes, times, shares, tables."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.quantities import duration, size

__all__ = ["PEAK_NOTE", "count", "duration", "percent", "size", "table"]

PEAK_NOTE = (
    "Peak and budget: bytes the step (forward and backward) holds at its worst moment, beyond parameters, buffers,\n"
    "inputs and optimizer state. Outputs, gradients and workspace count."
)


def percent(share: float, digits: int = 2) -> str:
    text = f"{share * 100:.{digits}f}%"
    return text[1:] if text.lstrip("-0.") == "%" and text.startswith("-") else text


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), indent: str = "") -> str:
    """Columns padded to their widest cell, two spaces apart; columns in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    lines = []
    for row in rows:
        cells = [c.rjust(widths[i]) if i in right else c.ljust(widths[i]) for i, c in enumerate(row)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def count(number: int, noun: str) -> str:
    """`1 operation`, `2,000 operations`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
