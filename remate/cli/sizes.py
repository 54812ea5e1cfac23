"""`--at b=16,t=256`: the size that a command uses for a schedule with named sizes, and texts about ranges."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

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
    purpose: str = "size of a schedule with named sizes; default, also for names left out: as planned",
) -> None:
    parser.add_argument("--at", metavar="b=16,t=256", type=_dims, default={}, help=purpose)


def _dims(text: str) -> dict[str, int]:
    dims: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not (equals and name.isidentifier() and number.isascii() and number.isdecimal() and len(number) < 19):
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a size; write b=16,t=256")
        if name in dims:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
        dims[name] = int(number)
    return dims


def opened_at(path: str, dims: Mapping[str, int]) -> Analysis:
    """Open the file at `path` at a size. Raises ScheduleError, UsageError."""
    return _at(path, opened(path), dims)


def both_at(paths: Sequence[str], dims: Mapping[str, int]) -> list[Analysis]:
    """Open two files at a size. The size applies to a file with named sizes only. Raises ScheduleError, UsageError."""
    both = [(path, opened(path)) for path in paths]
    sized = any(file.schedule.model.dims for _, file in both)
    return [_at(path, file, dims if file.schedule.model.dims or not sized else {}) for path, file in both]


def checked_at(path: str, schedule: Schedule, dims: Mapping[str, int]) -> None:
    """Raise UsageError if a schedule does not have this size."""
    from remate_runtime.errors import BindError
    from remate_runtime.format import checked_size

    try:
        checked_size(schedule.model, dims)
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
    """A note if a step was captured by the rules of another torch; otherwise ""."""
    from ..schedule_tools.rule_versions import without_rules

    model = schedule.model
    doubt = without_rules(model.torch) if model.captured == "by rules" else ""
    return f"note: {doubt}" if doubt else ""


def parts_line(schedule: Schedule) -> str:
    """The parts of a model that a schedule is for; "" for a whole model."""
    model = schedule.model
    each = f", each called {model.calls} times in a step" if model.calls > 1 else ""
    return f"for parts of a model: {', '.join(model.at)}{each}" if model.at else ""


def sizes_line(schedule: Schedule) -> str:
    """`sizes: b 2 to 32 (planned at 8)`; "" without named sizes."""
    text = sizes_text(schedule.model)
    return f"sizes: {text}" if text else ""


def over_budget(schedule: Schedule, path: str) -> list[str]:
    """A note if the largest size of a schedule is over the budget."""
    from remate_runtime.format import largest_sizes, spelled

    from ..schedule_tools.sizes import evaluated

    if not schedule.model.dims:
        return []
    ends = largest_sizes(schedule.model.dims, schedule.model.limits)
    largest = max((evaluated(schedule, end) for end in ends), key=lambda evaluation: evaluation.peak)
    if largest.peak <= schedule.solve.budget:
        return []
    note = f"over the budget at its largest size: {size(largest.peak)} at {spelled(largest.dims)}"
    return [note if path == STDOUT else f"{note}; remate check {shlex.quote(path)} lists the sizes within it"]


def size_line(evaluation: AtSize, budget: int) -> str:
    """The peak at one size, for `check --at`."""
    from remate_runtime.format import spelled

    where = "within" if evaluation.peak <= budget else "over"
    share = percent(evaluation.peak / max(1, evaluation.baseline), 1)
    recomputes = count(evaluation.recomputes, "recomputation")
    plan = f"{recomputes}, {share} of the baseline" if evaluation.recomputes else "baseline"
    return (
        f"  at {spelled(evaluation.dims)}: peak {size(evaluation.peak)}, {where} the budget of {size(budget)}; {plan}"
    )


def range_lines(budgeted: BudgetedRange) -> list[str]:
    """The sizes of a range that are within the budget."""
    from remate_runtime.format import spelled

    highest = max(budgeted.corners, key=lambda evaluation: evaluation.peak)
    if budgeted.everywhere:
        return [f"  within the budget at every size, up to {size(highest.peak)} at {spelled(highest.dims)}"]
    lines = [f"  over the budget at its largest size: {size(highest.peak)} at {spelled(highest.dims)}"]
    if budgeted.largest:
        rows: list[tuple[str, str, str]] = []
        for evaluation in budgeted.largest:
            (name, number), *rest = evaluation.dims.items()
            at = f" at {spelled(dict(rest))}" if rest else ""
            share = (
                f"{percent(evaluation.peak / evaluation.baseline, 1)} of the baseline"
                if evaluation.recomputes
                else "baseline"
            )
            rows.append((f"up to {name}={number}{at}", size(evaluation.peak), share))
        lines += ["  sizes within the budget:", table(rows, right=(1,), indent="    ")]
    lines += [f"    none at {spelled(rest)}" if rest else "  no size is within the budget" for rest in budgeted.never]
    return lines
