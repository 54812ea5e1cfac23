"""The range of a live attribute in which the step is the planned one. Does not require torch."""

from __future__ import annotations

import math

from ..errors import ScheduleError
from .limits import MAX_LIVE
from .literals import Faults
from .schedule import Live, Model
from .signature import escape

_WHOLE = 1 << 53  # larger integers are not all doubles


def check_live(faults: Faults, model: Model, where: str) -> None:
    """Check the names in `live` of the model, and their number."""
    if len(model.live) > MAX_LIVE:
        faults.add("R072", f"over {MAX_LIVE} live attributes", f"{where}/live", "")
        return
    for name in model.live:
        faults.name(name, f"{where}/live/{escape(name)}")


def holds(live: Live, value: float) -> bool:
    """Return whether a number is finite and in the range."""
    return (
        math.isfinite(value)
        and (live.min is None or value >= live.min)
        and (live.above is None or value > live.above)
        and (live.max is None or value <= live.max)
        and (live.below is None or value < live.below)
    )


def range_text(live: Live) -> str:
    """Describe a range: `above 0 and below 1`, `any number`."""
    ends = (("at least", live.min), ("above", live.above), ("at most", live.max), ("below", live.below))
    return " and ".join(f"{word} {end!r}" for word, end in ends if end is not None) or "any number"


def range_fault(live: Live) -> ScheduleError | None:
    """Return the fault of a single live attribute (R028)."""
    ends = (live.planned, live.min, live.above, live.max, live.below)
    if any(isinstance(end, int) and abs(end) > _WHOLE for end in ends):
        return ScheduleError("R028", "a number that no double is equal to", hint="up to 2^53")
    if (live.min is not None and live.above is not None) or (live.max is not None and live.below is not None):
        return ScheduleError("R028", "two ends on one side", hint="`min` is in the range, `above` is not: state one")
    if not holds(live, live.planned):
        message = f"planned at {live.planned!r}, and the range is {range_text(live)}"
        return ScheduleError("R028", message, hint="state a range that holds what was planned")
    return None
