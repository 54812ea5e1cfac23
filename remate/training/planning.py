"""Plans a recorded call within a training step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from remate_runtime.extras import require
from remate_runtime.format import Schedule

from ..capture.recorded import RecordedCall
from .settings import AutoSettings
from .surroundings import undisturbed

_ABOUT_SIZES = "the schedule is for"  # start of the warnings that explain why a size is fixed


def planned_again(call: RecordedCall, settings: AutoSettings, known: Sequence[Schedule]) -> list[Schedule]:
    """Plan a call, and carry over the notes of the replaced schedules. Raises the errors of `remate.plan`."""
    require("remate.auto", "torch", "plan")
    from ..api.plan import plan
    from ..schedule_tools.notes import carry_notes

    with undisturbed(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        planned = plan(call, budget=settings.budget, progress=settings.progress, **settings.plan)
    for warning in caught:
        if str(warning.message).startswith(_ABOUT_SIZES):
            settings.say(str(warning.message).splitlines()[0])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    schedules = [planned] if isinstance(planned, Schedule) else list(planned)
    if len(schedules) == len(known) == 1:
        schedules = [carry_notes(known[0], schedules[0])[0]]
    return schedules
