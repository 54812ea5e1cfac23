"""What torch's allocator reserves beside what a step allocates, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..schedule_tools.addresses import Reserved
from ..schedule_tools.analysis import Analysis
from .text import percent, size

RESERVED_NOTE = (
    "Reserved: what PyTorch's caching allocator takes of the device to serve the step, by a model of its rules. The "
    "model\n"
    "has not been held against a GPU yet; torch.cuda.max_memory_reserved() reports what a run took."
)


def reserved_rows(ours: Reserved, base: Reserved, opened: Analysis) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the table of figures; base: of the baseline."""
    for label, with_plan, without in (
        ("reserved, by a model", ours.plain.reserved, base.plain.reserved),
        ("reserved, expandable segments", ours.expandable.reserved, base.expandable.reserved),
    ):
        yield label, size(with_plan), size(without), fragmentation(with_plan, opened)


def reserved_lines(ours: Reserved, opened: Analysis) -> list[str]:
    plain, expandable = ours.plain.reserved, ours.expandable.reserved
    return [
        f"reserved, by a model of PyTorch's allocator, {size(plain)}: {fragmentation(plain, opened)}",
        f"reserved with expandable segments, {size(expandable)}: {fragmentation(expandable, opened)}",
    ]


def fragmentation(reserved: int, opened: Analysis) -> str:
    """What of a reservation the step never holds, and what that is of the budget."""
    budget, unused = opened.schedule.solve.budget, reserved - opened.timeline.peak
    share = f", {percent(unused / budget, 1)} of the budget" if budget else ""
    return f"fragmentation {size(unused)}{share}"
