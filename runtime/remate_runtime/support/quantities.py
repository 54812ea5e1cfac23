"""Prints bytes and times."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Format bytes: 1536 -> `1.50 KiB`."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while abs(amount) >= 1023.995 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{amount:.{_digits(amount)}f} {units[0]}"


def duration(ns: float) -> str:
    """Format nanoseconds: 1_500_000 -> `1.50 ms`."""
    amount, units = float(ns), ["ns", "us", "ms", "s"]
    while abs(amount) >= 999.995 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.{_digits(amount)}f} {units[0]}"


def overhead(time: int, base: int, without: str = "") -> str:
    """Format the change of a time (ns) against `base`, signed: `+7.86%`. without: text if base is 0."""
    return f"{(time / base - 1) * 100:+.2f}%" if base else without


def _digits(amount: float) -> int:
    """Return the number of decimals for three or four significant digits."""
    return 2 if abs(amount) < 9.995 else 1 if abs(amount) < 99.95 else 0
