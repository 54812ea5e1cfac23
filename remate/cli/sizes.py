"""`--at b=16,t=256`: the size at which a command looks at a schedule that names sizes; and what `check` says of its range."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..present.text import percent, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remate_runtime.format import Schedule

    from ..inspect.analysis import Analysis
    from ..inspect.sizes import Range


def add_at(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at",
        metavar="b=16,t=256",
        type=_dims,
        default={},
        help="of a schedule that names sizes, the size; those left out, and the default: as planned",
    )


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
    """The file at `path`, at a size. Raises ScheduleError, BindError."""
    from ..inspect.analysis import analyse, open_schedule

    opened = open_schedule(path)
    if not dims:
        return opened
    from ..inspect.sizes import schedule_at

    return analyse(schedule_at(opened.schedule, dims))


def parts_line(schedule: Schedule) -> str:
    """Which parts of a model a schedule is for; "" where it is for a whole one."""
    model = schedule.model
    each = f", each called {model.calls} times in a step" if model.calls > 1 else ""
    return f"for parts of a model: {', '.join(model.at)}{each}" if model.at else ""


def sizes_line(schedule: Schedule) -> str:
    """`sizes: b 2 to 32 (planned at 8), t 16 to 1024 in steps of 8 (planned at 512)`; "" where none are named."""
    from remate_runtime.format import ranged

    dims = schedule.model.dims.items()
    told = ", ".join(f"{name} {ranged(dim)} (planned at {dim.planned})" for name, dim in dims)
    return f"sizes: {told}" if told else ""


def range_lines(found: Range) -> list[str]:
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
            share = f"{percent(one.peak / one.keep_all, 1)} of keep-all" if one.reruns else "keep-all"
            rows.append((f"up to {name}={number}{at}", size(one.peak), share))
        lines += ["  sizes within the budget:", table(rows, right=(1,), indent="    ")]
    lines += [f"    none at {spelled(rest)}" if rest else "  no size is within the budget" for rest in found.never]
    return lines
