"""The memory that PyTorch's allocator reserves for a step, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..schedule_tools.addresses import Reserved
from ..schedule_tools.analysis import Analysis
from .text import percent, size

RESERVED_NOTE = (
    "Reserved: memory that PyTorch's caching allocator takes from the device for the step, by a model of its\n"
    "rules. The model has not been compared with a GPU yet; torch.cuda.max_memory_reserved() reports what a run took."
)


def reserved_rows(ours: Reserved, base: Reserved, opened: Analysis) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of the table of figures.

    Args:
        ours: Reservations of the schedule.
        base: Reservations of the baseline.
        opened: The schedule.
    """
    for label, with_plan, without in (
        ("reserved, by a model", ours.plain.reserved, base.plain.reserved),
        ("reserved, expandable segments", ours.expandable.reserved, base.expandable.reserved),
    ):
        yield label, size(with_plan), size(without), fragmentation(with_plan, opened)


def reserved_lines(ours: Reserved, opened: Analysis) -> list[str]:
    """Return a line for each setting of the allocator."""
    plain, expandable = ours.plain.reserved, ours.expandable.reserved
    return [
        f"reserved, by a model of PyTorch's allocator, {size(plain)}: {fragmentation(plain, opened)}",
        f"reserved with expandable segments, {size(expandable)}: {fragmentation(expandable, opened)}",
    ]


def fragmentation(reserved: int, opened: Analysis) -> str:
    """Return the bytes of a reservation that the step never uses, and their share of the budget."""
    budget, unused = opened.schedule.solve.budget, reserved - opened.timeline.peak
    share = f", {percent(unused / budget, 1)} of the budget" if budget else ""
    return f"fragmentation {size(unused)}{share}"
