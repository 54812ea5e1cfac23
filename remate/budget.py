"""Parses memory budgets: `4GiB`, `512MB`, plain bytes, or a share of the baseline's peak such as `60%`."""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec

from remate_runtime.errors import RemateError

DEFAULT_SHARE = "60%"  # without a curve of peak and time to choose from
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_BUDGET = re.compile(r"\s*([0-9][0-9_]{0,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})\s*(%|[a-zA-Z]*)\s*")
_HINT = '\n  hint: write "4GiB", "512MB", a number of bytes, or "60%" of the peak without recomputation'


class BudgetError(RemateError):
    """Raised for a budget that cannot be parsed."""


class Budget(msgspec.Struct, frozen=True):
    """A budget: `size` in bytes, or `share` of the baseline peak (3/5 for 60%); the other one is None."""

    size: int | None
    share: Fraction | None

    def resolve(self, baseline_peak: int) -> int:
        """Return the budget in bytes. baseline_peak: bytes of the schedule without recomputation."""
        if self.size is not None:
            return self.size
        assert self.share is not None
        return int(self.share * baseline_peak)

    def __str__(self) -> str:
        return f"{self.size} bytes" if self.share is None else f"{float(self.share) * 100:g}% of the baseline peak"


class RequestedBudget(msgspec.Struct, frozen=True):
    """A budget as written, and in bytes."""

    text: str
    budget: int


def parse_budget(text: object) -> Budget:
    """Parse a budget: text, or an int of bytes. Raises BudgetError for anything but a positive size or share."""
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise BudgetError(f"the budget {text!r} is a {type(text).__name__}{_HINT}")
    if isinstance(text, int):
        return _positive(Budget(text, None), text)
    if text.strip().isdecimal() and 0 < int(text.strip()[:9]) <= 100:
        raise BudgetError(
            f"the budget {text!r} is {text.strip()} bytes\n  hint: is {text.strip()}% of the peak without "
            "recomputation meant? "
            f'write "{text.strip()}%", or "{text.strip()}B" for bytes'
        )
    match = _BUDGET.fullmatch(text)
    if match is None:
        raise BudgetError(f"the budget {text!r} cannot be read{_HINT}")
    number = Fraction(match[1].replace("_", ""))
    if match[2] == "%":
        return _positive(Budget(None, number / 100), text)
    if match[2].lower() not in _UNITS:
        raise BudgetError(f"the budget {text!r} has the unknown unit {match[2]!r}{_HINT}")
    return _positive(Budget(int(number * _UNITS[match[2].lower()]), None), text)


def parse_speed(text: str) -> int:
    """Parse a bandwidth in bytes per second: `50GB/s`. Raises BudgetError."""
    size = text.strip().removesuffix("/s")
    try:
        nbytes = parse_budget(size).size if size != text.strip() else None
    except BudgetError:
        nbytes = None
    if not nbytes:
        raise BudgetError(f"the bandwidth {text!r} cannot be read\n  hint: write measured, or 50GB/s")
    return nbytes


def _positive(budget: Budget, given: str | int) -> Budget:
    amount = budget.share if budget.size is None else budget.size
    if amount is None or amount <= 0:
        raise BudgetError(f"the budget {given!r} must be more than zero{_HINT}")
    return budget
