"""The result of a sweep over budgets, as JSON and as a table. Imports neither torch nor a solver."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from ..budget import BudgetError, parse_budget
from ..profile.devices import is_estimated
from .text import duration, json_text, percent, plain, size, table

SUMMARY = "frontier.json"
MOST = 1000  # budgets in one sweep


class BudgetPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A budget and its schedule. Without a schedule, only `requested` and `budget` are set.

    budget, peak: Bytes. time, lower_bound: ns. gap: (time - lower_bound) / baseline_time.
    """

    requested: str
    budget: int
    file: str | None = None
    peak: int | None = None
    time: int | None = None
    lower_bound: int | None = None
    gap: float | None = None
    stopped_by: str | None = None
    strategy: str | None = None
    recomputes: int | None = None


class Summary(msgspec.Struct, frozen=True):
    """A sweep.

    baseline_peak, floor, smallest: Bytes. No schedule has a peak below `floor`. `smallest` is the least peak of the
    sweep. baseline_time: ns. complete: Whether every budget was tried. points: By ascending budget.
    """

    format: str
    version: int
    name: str
    cost: str
    baseline_peak: int
    baseline_time: int
    floor: int
    smallest: int
    complete: bool
    points: tuple[BudgetPoint, ...]

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return json_text(self).encode() + b"\n"

    def text(self) -> str:
        """Return the sweep as a table."""
        head = ("budget", "", "peak", "overhead", "bound", "gap", "recomputes", "file")
        rows = [head, *(self._row(point) for point in self.points)]
        about = (
            plain(f"{self.name}: ")
            + f"baseline {size(self.baseline_peak)}, {duration(self.baseline_time)} ({self.cost} costs); "
            f"smallest peak found {size(self.smallest)}, proven floor {size(self.floor)}"
            + " of estimated workspaces"
            * is_estimated(self.cost)
        )
        rest = () if self.complete else ("interrupted: larger budgets were not tried",)
        return "\n".join([table(rows, right=(1, 2, 3, 4, 5, 6)), about, *rest])

    def _row(self, point: BudgetPoint) -> tuple[str, ...]:
        if point.time is None or point.peak is None or point.lower_bound is None:
            why = "below the proven floor" if point.budget < self.floor else "none found"
            return point.requested, size(point.budget), "", "", "", "", "", f"infeasible: {why}"
        base = max(1, self.baseline_time)
        figures = (f"{share * 100:+.2f}%" for share in (point.time / base - 1, point.lower_bound / base - 1))
        return (
            point.requested,
            size(point.budget),
            size(point.peak),
            *figures,
            percent(point.gap or 0.0),
            f"{point.recomputes or 0:,}",
            point.file or "",
        )


def parse_budgets(text: str, steps: int) -> list[str]:
    """Parse budgets: `20%..100%`, `4GiB..8GiB`, or a list of budgets and ranges, such as `40%,60%,4GiB`.

    Args:
        text: The budgets.
        steps: Number of budgets in a range, ends included.

    Raises:
        BudgetError: The text is no list of budgets.
    """
    budgets: list[str] = []
    for item in text.split(","):
        low, dots, high = item.partition("..")
        budgets += _range(low, high, steps) if dots else [item.strip()]
        if len(budgets) > MOST:
            raise BudgetError(f"over {MOST} budgets")
    for budget in budgets:
        parse_budget(budget)
    return list(dict.fromkeys(budgets))


def _range(low: str, high: str, steps: int) -> list[str]:
    a, b = parse_budget(low), parse_budget(high)
    if (a.share is None) != (b.share is None):
        raise BudgetError(f"{low}..{high} mixes a share and a size\n  hint: write 20%..100%, or 4GiB..8GiB")
    steps = max(steps, 2)
    if a.share is not None and b.share is not None:
        shares = [a.share + (b.share - a.share) * n / (steps - 1) for n in range(steps)]
        return [f"{_short(100 * share)}%" for share in shares]
    first, last = a.size or 0, b.size or 0
    return [str(first + (last - first) * n // (steps - 1)) for n in range(steps)]


def _short(number: Fraction) -> str:
    return f"{float(number):.4f}".rstrip("0").rstrip(".")


def file_name(requested: str) -> str:
    """Return the file name of a budget's schedule. Names of shares sort like the shares."""
    share = requested.strip()
    if not share.endswith("%"):
        return f"budget-{share.replace(' ', '')}.json"
    whole, _, rest = share[:-1].strip().partition(".")
    return f"budget-{whole.rjust(3, '0')}{'.' + rest if rest else ''}.json"
