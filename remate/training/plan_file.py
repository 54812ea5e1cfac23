"""Reads and writes the schedule file between runs, and checks whether it fits a model and a call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remate_runtime import apply
from remate_runtime.applied import original_of
from remate_runtime.bind import is_distributed
from remate_runtime.errors import BindError, ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format import Schedule, load
from remate_runtime.link import link, peak_together
from remate_runtime.operators import COMMUNICATION
from remate_runtime.support.files import check_writable
from remate_runtime.support.quantities import overhead, size

from ..budget import parse_budget
from .settings import AutoSettings


def check_file(path: Path) -> None:
    """Check that schedules can be written to a path, before any work starts.

    Raises:
        OSError: The path is not writable.
        ScheduleError: The path is a file of another kind.
    """
    if path.is_dir():
        return
    if path.exists() and path.stat().st_size:
        load(path)
    check_writable(path)


def schedules_at(path: Path | None) -> list[Schedule]:
    """Return the schedules of a file or folder; none if it does not exist yet. Raises ScheduleError."""
    if path is None or not path.exists():
        return []
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [load(file) for file in files if not file.name.endswith(".schema.json") and file.stat().st_size]


def save(path: Path, schedules: Sequence[Schedule]) -> None:
    """Write one schedule to a file, or several to a folder by their names."""
    if len(schedules) == 1 and not path.is_dir():
        schedules[0].save(str(path))
        return
    path.mkdir(parents=True, exist_ok=True)
    for schedule in schedules:
        schedule.save(str(path / f"{schedule.name}.json"))


def applied(model: Any, schedules: Sequence[Schedule], settings: AutoSettings, *, read: bool = False) -> Any:
    """Return the model with its schedules. They may run collectives if the model does.

    Args:
        model: The model.
        schedules: The schedules.
        settings: Arguments of `auto`.
        read: Whether they are those of a file, which needs permission for libraries and unchecked operators. What was
            planned here has the operators that the model itself calls.

    Raises:
        BindError: The schedules do not fit the model, or have no permission.
        RemateError: Other errors of `apply`.
    """
    given = dict(settings.apply)
    permitted = list(given.get("namespaces", ()))
    if any(map(is_distributed, model.parameters())):
        permitted += sorted(COMMUNICATION)
    if not read:
        permitted += [name for schedule in schedules for name in schedule.namespaces]
    given["namespaces"] = tuple(dict.fromkeys(permitted))
    try:
        return apply(model, list(schedules), **given)
    except ScheduleError as error:
        if error.code != "R050":
            raise
        raise BindError(str(error)) from error


def refused_call(planned: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> str:
    """Return why no schedule of a model fits a call; "" if one fits, or if the schedules are for parts of the model."""
    step = getattr(planned, "_remate_step", None)
    if step is None:
        return ""
    reason = "it was planned in another mode than the model is in"
    for bound in step.steps:
        if bound.schedule.model.training == original_of(planned).training:
            try:
                bound.call(args, kwargs)
            except BindError as error:
                reason = str(error)
            else:
                return ""
    return reason


def other_budget(schedules: Sequence[Schedule], budget: str | int | None) -> str:
    """Return a text about the planned budget if it is not the requested one; otherwise ""."""
    if budget in (None, "min"):  # the budget follows from a goal
        return ""
    for schedule in schedules:
        planned = schedule.solve.settings
        if len(schedules) == 1 and planned is not None and planned.budget != str(budget):
            return f"it was planned for a budget of {planned.budget}, and {budget} is requested"
    return ""


def summary(name: str, schedules: Sequence[Schedule], path: Path | None) -> str:
    """Return one line with the predicted peak and time of a model's schedules."""
    peak, base = predicted_peaks(schedules)
    time, without = (sum(getattr(schedule.solve, what) for schedule in schedules) for what in ("time", "baseline_time"))
    slower = f"{overhead(time, without)} time" if without else "no cost"
    kept = "" if path is None else f"; {path}"
    return f"{name}: peak {size(peak)} of {size(base)}, {slower} predicted{kept}"


def saves_nothing(schedules: Sequence[Schedule], budget: str | int | None) -> bool:
    """Return whether schedules need as much memory as the model's own forward, although a budget requests less."""
    if budget in (None, "min", "fit"):  # the time that recomputation takes counts, too
        return False
    peak, base = predicted_peaks(schedules)
    return peak >= base and parse_budget(budget).resolve(base) < base


def predicted_peaks(schedules: Sequence[Schedule]) -> tuple[int, int]:
    """Return the predicted peak of a model's schedules together, and that without recomputation."""
    if len(schedules) == 1:
        return schedules[0].solve.peak, schedules[0].solve.baseline_peak
    steps = [expand(schedule) for schedule in schedules]
    planned = peak_together([link(step.graph, step.recomputes, step.pages) for step in steps])
    return planned, peak_together([link(step.graph) for step in steps])
