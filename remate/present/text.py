"""How the commands print figures: bytes, times, shares, tables."""

from __future__ import annotations

from collections.abc import Sequence

PEAK_NOTE = (
    "Peak and budget: bytes the step (forward and backward) holds at its worst moment, beyond parameters, buffers,\n"
    "inputs and optimizer state. Outputs, gradients and workspace count."
)


def size(nbytes: int) -> str:
    """1536 -> `1.50 KiB`."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while abs(amount) >= 1023.995 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{amount:.{_digits(amount)}f} {units[0]}"


def duration(ns: float) -> str:
    """1_500_000 nanoseconds -> `1.50 ms`."""
    amount, units = float(ns), ["ns", "us", "ms", "s"]
    while abs(amount) >= 999.995 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.{_digits(amount)}f} {units[0]}"


def _digits(amount: float) -> int:
    """Decimals that leave three or four significant digits."""
    return 2 if abs(amount) < 9.995 else 1 if abs(amount) < 99.95 else 0


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
