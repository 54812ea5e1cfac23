"""Plans a recorded call within a training step: the whole model, or the parts of it that can be captured."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from remate_runtime.extras import require
from remate_runtime.flat_step import expand
from remate_runtime.format import Schedule, TensorType
from remate_runtime.support.callers import frames_to_caller

from ..api.over_budget import OVER_BUDGET
from ..capture.recorded import RecordedCall
from ..capture.static_parts import static_parts
from ..errors import CaptureError, DimsError, LostOutputWarning
from .plan_file import saves_nothing
from .settings import AutoSettings
from .surroundings import undisturbed

_ABOUT_SIZES = "the schedule is for"  # start of the warnings that explain why a size is fixed
_WHOLE_MODEL = (
    "at",
    "live",
    "fill",
    "fsdp",
    "disk_budget",
    "host_budget",
    "split",
    "slowdown",
)  # options that exclude parts
CONSTANTS_CHANGE = (
    "forward uses tensors that the model does not register, and that change",
    "register the module that has them (self.teacher = teacher)",
)
_SHOWN = 4  # most paths in a message


def planned_again(
    call: RecordedCall,
    settings: AutoSettings,
    known: Sequence[Schedule],
    live: Sequence[str],
    warned: set[str],
    instead: tuple[str, str] | None = None,
    settled: bool = False,
) -> list[Schedule]:
    """Plan a call, and carry over the notes of the replaced schedules.

    If the model cannot be captured as a whole, the parts of it that can are planned.

    Args:
        call: The call.
        settings: Arguments of `auto`.
        known: The replaced schedules.
        live: Attributes and inputs whose numbers have changed. They are read at every call if that can be planned.
        warned: Warnings about the model so far, which are not repeated; extended.
        instead: Why the parts are planned and not the whole model, and what to do about it.
        settled: The model has been called before, and later calls are no easier to capture.

    Raises:
        RemateError: The errors of `remate.plan`.
    """
    require("remate.auto", "torch", "plan")
    from ..schedule_tools.notes import carry_notes

    with undisturbed(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("error", LostOutputWarning)  # the script may use what the schedule would lose
        try:
            if instead is not None:
                reason, hint = instead
                raise CaptureError(reason, hint=hint, parts=static_parts(call.model, ""))
            planned = _planned_with(call, settings, live)
        except CaptureError as error:
            parts = error.parts or ([] if error.settles and not settled else static_parts(call.model, ""))
            if not parts or not _may_be_parts(settings):
                raise
            caught.clear()  # they are about the whole model
            planned = _planned_parts(call, settings, error, parts)
    schedules = [planned] if isinstance(planned, Schedule) else list(planned)
    needless = saves_nothing(schedules, settings.budget)
    for warning in caught:
        text = str(warning.message)
        if text in warned:
            continue
        warned.add(text)
        if text.startswith(_ABOUT_SIZES):
            settings.say(text.splitlines()[0])
        elif needless and text.startswith(OVER_BUDGET):  # no schedule is used, so that only the advice matters
            _say_advice(text, settings)
        else:
            _warn_again(warning)
    if len(schedules) == len(known) == 1:
        schedules = [carry_notes(known[0], schedules[0])[0]]
    return schedules


def _say_advice(over_budget: str, settings: AutoSettings) -> None:
    """Say how less memory could be reached, without the budget to ask for."""
    advice = over_budget.rpartition("hint: ")[2].partition(", or ")[2]
    if advice:
        settings.say(f"for less memory, {advice}")


def _warn_again(warning: warnings.WarningMessage) -> None:
    """Pass on a warning, of remate itself at the line that made the call: once, and where the user can look."""
    if f"{os.sep}remate{os.sep}" in warning.filename:
        warnings.warn(warning.message, warning.category, stacklevel=frames_to_caller())
    else:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _planned_with(call: RecordedCall, settings: AutoSettings, live: Sequence[str]) -> Any:
    if live and settings.plan.get("live") is None:
        try:
            return _planned(call, settings, {**settings.plan, "live": live})
        except (CaptureError, DimsError) as error:
            settings.say(f"{', '.join(live)} cannot be read at every call, and is planned as it is: {error.message}")
    return _planned(call, settings, settings.plan)


def _planned(call: RecordedCall, settings: AutoSettings, options: Mapping[str, Any]) -> Any:
    from ..api.plan import plan_beside_original

    return plan_beside_original(call, settings.budget, {"progress": settings.progress, **options})


def _may_be_parts(settings: AutoSettings) -> bool:
    """Return whether the options apply to parts of a model, too."""
    options = settings.plan
    if (
        settings.budget in ("min", "fit")
        or options.get("cost") == "compiled"
        or options.get("dims") not in (None, "auto")
    ):
        return False
    return all(options.get(name) is None for name in _WHOLE_MODEL)


def _planned_parts(call: RecordedCall, settings: AutoSettings, refused: CaptureError, parts: Sequence[str]) -> Any:
    """Plan parts instead of the refused model, as far as they can be captured. Raises `refused` if none can."""
    from ..api.tried_parts import tried_parts

    options = {name: value for name, value in settings.plan.items() if name not in ("dims", "differentiate")}
    parts = tried_parts(call, parts)
    planned: Schedule | Sequence[Schedule] = _planned(call, settings, {**options, "at": parts}) if parts else ()
    schedules = [planned] if isinstance(planned, Schedule) else planned
    kept = [schedule for schedule in schedules if _returns_usual_layouts(schedule)]
    if not kept:
        raise refused
    where = f" ({refused.source})" if refused.source else ""
    paths = [path for schedule in kept for path in schedule.model.at]
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN + 1 else ""
    shown = ", ".join(paths[:_SHOWN] if more else paths) + more
    advice = f"; to plan it as a whole: {refused.hint}" if refused.hint else ""
    settings.say(f"{refused.message}{where}: planned: {shown}; the rest runs as it is{advice}")
    return kept


def _returns_usual_layouts(schedule: Schedule) -> bool:
    """Return whether all outputs are contiguous or channels-last.

    For other layouts, the gradient that arrives usually has a different layout than the planned step assumes. Kernels
    of backward would round differently than those of the original model.
    """
    graph = expand(schedule).graph
    return all(_usual_layout(graph.values[value].type) for value in graph.outputs)


def _usual_layout(kind: TensorType) -> bool:
    if (strides := kind.strides) is None:
        return True
    axes = sorted((axis for axis, n in enumerate(kind.shape) if n > 1), key=lambda axis: -strides[axis])
    return len(kind.shape) >= 4 and axes == [*sorted(axis for axis in axes if axis != 1), *([1] if 1 in axes else [])]
