"""Parses memory budgets: `4GiB`, `512MB`, plain bytes, or a share of the baseline's peak such as `60%`."""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec

from remate_runtime.errors import RemateError

DEFAULT_SHARE = "60%"  # where there is no curve of peak and time to choose from
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_BUDGET = re.compile(r"\s*([0-9][0-9_]{0,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})\s*(%|[a-zA-Z]*)\s*")
_HINT = '\n  hint: write "4GiB", "512MB", a number of bytes, or "60%" of the peak without recomputation'


class BudgetError(RemateError):
    """A budget that cannot be understood."""


class Budget(msgspec.Struct, frozen=True):
    """Either `size` in bytes, or `share` of the baseline peak (3/5 for 60%); the other one is None."""

    size: int | None
    share: Fraction | None

    def resolve(self, baseline_peak: int) -> int:
        """The budget in bytes, given the peak (bytes) of the schedule that keeps everything."""
        if self.size is not None:
            return self.size
        assert self.share is not None
        return int(self.share * baseline_peak)

    def __str__(self) -> str:
        return f"{self.size} bytes" if self.share is None else f"{float(self.share) * 100:g}% of the baseline peak"


class RequestedBudget(msgspec.Struct, frozen=True):
    """A budget as it was written, and in bytes."""

    text: str
    budget: int


def parse_budget(given: str | int) -> Budget:
    """Read a budget. An int is bytes. Raises BudgetError for anything else than a positive size or share."""
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise BudgetError(f"the budget {given!r} is a {type(given).__name__}{_HINT}")
    if isinstance(given, int):
        return _positive(Budget(given, None), given)
    if given.strip().isdecimal() and 0 < int(given.strip()[:9]) <= 100:
        raise BudgetError(
            f"the budget {given!r} is {given.strip()} bytes\n  hint: is {given.strip()}% of the peak without "
            "recomputation meant? "
            f'write "{given.strip()}%", or "{given.strip()}B" for bytes'
        )
    found = _BUDGET.fullmatch(given)
    if found is None:
        raise BudgetError(f"the budget {given!r} cannot be read{_HINT}")
    number = Fraction(found[1].replace("_", ""))
    if found[2] == "%":
        return _positive(Budget(None, number / 100), given)
    if found[2].lower() not in _UNITS:
        raise BudgetError(f"the budget {given!r} has the unknown unit {found[2]!r}{_HINT}")
    return _positive(Budget(int(number * _UNITS[found[2].lower()]), None), given)


def parse_speed(given: str) -> int:
    """Read a bandwidth, in bytes per second: `50GB/s`. Raises BudgetError."""
    size = given.strip().removesuffix("/s")
    try:
        found = parse_budget(size).size if size != given.strip() else None
    except BudgetError:
        found = None
    if not found:
        raise BudgetError(f"the bandwidth {given!r} cannot be read\n  hint: write measured, or 50GB/s")
    return found


def _positive(budget: Budget, given: str | int) -> Budget:
    amount = budget.share if budget.size is None else budget.size
    if amount is None or amount <= 0:
        raise BudgetError(f"the budget {given!r} must be more than zero{_HINT}")
    return budget
