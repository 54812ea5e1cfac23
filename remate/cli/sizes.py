"""`--at b=16,t=256`: the size at which a command looks at a schedule that names sizes; and what `check` says of its
range."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from ..capture.cuda.versions import without_rules
from ..present.sizes import sizes_text
from ..present.text import count, percent, size, table
from .inputs import opened
from .output import STDOUT
from .usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remate_runtime.format import Schedule

    from ..schedule_tools.analysis import Analysis
    from ..schedule_tools.sizes import AtSize, BudgetedRange


def add_at(
    parser: argparse.ArgumentParser,
    purpose: str = "of a schedule that names sizes, the size; those left out, and the default: as planned",
) -> None:
    parser.add_argument("--at", metavar="b=16,t=256", type=_dims, default={}, help=purpose)


def _dims(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not (equals and name.isidentifier() and number.isascii() and number.isdecimal() and len(number) < 19):
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is no size; write b=16,t=256")
        if name in found:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
        found[name] = int(number)
    return found


def opened_at(path: str, dims: Mapping[str, int]) -> Analysis:
    """The file at `path`, at a size. Raises ScheduleError, UsageError."""
    return _at(path, opened(path), dims)


def both_at(paths: Sequence[str], dims: Mapping[str, int]) -> list[Analysis]:
    """Two files to compare at a size. Where only one of them names sizes, the other is as it is. Raises ScheduleError,
    UsageError."""
    found = [opened(path) for path in paths]
    if not any(one.schedule.model.dims for one in found):
        return [_at(path, one, dims) for path, one in zip(paths, found, strict=True)]
    return [_at(path, one, dims if one.schedule.model.dims else {}) for path, one in zip(paths, found, strict=True)]


def checked_at(path: str, schedule: Schedule, dims: Mapping[str, int]) -> None:
    """Raise UsageError where a schedule has no such size."""
    from remate_runtime.errors import BindError
    from remate_runtime.format import checked_size

    try:
        checked_size(schedule.model.dims, dims)
    except BindError as error:
        what, *more = (line.strip() for line in str(error).splitlines())
        raise UsageError("\n  hint: ".join([f"--at: {what} ({path})", *more])) from None


def _at(path: str, planned: Analysis, dims: Mapping[str, int]) -> Analysis:
    if not dims:
        return planned
    from ..schedule_tools.analysis import analyse
    from ..schedule_tools.sizes import schedule_at

    checked_at(path, planned.schedule, dims)
    return analyse(schedule_at(planned.schedule, dims))


def rules_line(schedule: Schedule) -> str:
    """That a step was captured by rules of another torch; "" if not."""
    model = schedule.model
    said = without_rules(model.torch) if model.captured == "by rules" else ""
    return f"note: {said}" if said else ""


def parts_line(schedule: Schedule) -> str:
    """Which parts of a model a schedule is for; "" where it is for a whole one."""
    model = schedule.model
    each = f", each called {model.calls} times in a step" if model.calls > 1 else ""
    return f"for parts of a model: {', '.join(model.at)}{each}" if model.at else ""


def sizes_line(schedule: Schedule) -> str:
    """`sizes: b 2 to 32 (planned at 8)`; "" where none are named."""
    told = sizes_text(schedule.model)
    return f"sizes: {told}" if told else ""


def over_budget(schedule: Schedule, path: str) -> list[str]:
    """What to say where the largest size of a schedule is over the budget that holds where it was planned."""
    from remate_runtime.format import spelled

    from ..schedule_tools.sizes import corner_sizes, evaluated

    if not schedule.model.dims:
        return []
    most = evaluated(schedule, next(corner_sizes(schedule.model.dims)))
    if most.peak <= schedule.solve.budget:
        return []
    told = f"over the budget at its largest size: {size(most.peak)} at {spelled(most.dims)}"
    return [told if path == STDOUT else f"{told}; remate check {shlex.quote(path)} reports the sizes within it"]


def size_line(found: AtSize, budget: int) -> str:
    """What one size takes, for `check --at`."""
    from remate_runtime.format import spelled

    where = "within" if found.peak <= budget else "over"
    plan = f"{count(found.recomputes, 'recomputation')}, {percent(found.peak / found.baseline, 1)} of the baseline"
    plan = plan if found.recomputes else "baseline"
    return f"  at {spelled(found.dims)}: peak {size(found.peak)}, {where} the budget of {size(budget)}; {plan}"


def range_lines(found: BudgetedRange) -> list[str]:
    """What the budget allows over the range."""
    from remate_runtime.format import spelled

    most = max(found.corners, key=lambda one: one.peak)
    if found.everywhere:
        return [f"  within the budget at every size, up to {size(most.peak)} at {spelled(most.dims)}"]
    lines = [f"  over the budget at its largest size: {size(most.peak)} at {spelled(most.dims)}"]
    if found.largest:
        rows = []
        for one in found.largest:
            (name, number), *rest = one.dims.items()
            at = f" at {spelled(dict(rest))}" if rest else ""
            share = f"{percent(one.peak / one.baseline, 1)} of the baseline" if one.recomputes else "baseline"
            rows.append((f"up to {name}={number}{at}", size(one.peak), share))
        lines += ["  sizes within the budget:", table(rows, right=(1,), indent="    ")]
    lines += [f"    none at {spelled(rest)}" if rest else "  no size is within the budget" for rest in found.never]
    return lines
