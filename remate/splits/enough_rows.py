"""Open sizes of a split step: at the smallest ones, each window still has a row for every tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import Graph, expand, row_count
from remate_runtime.format import Schedule, at_size

from .windows import Window


def with_enough_rows(schedule: Schedule, given: Collection[str]) -> Schedule:
    """Return a schedule with splits whose range of sizes begins where all windows have a row for every tile.

    Args:
        schedule: The schedule. At its planned sizes there are enough rows.
        given: Names of the sizes whose least number stays.
    """
    dims = dict(schedule.model.dims)
    least = {name: dim.min for name, dim in dims.items()}
    for name in [name for name in dims if name not in given]:
        if _enough(schedule, least):
            break
        dim = dims[name]
        numbers = range(dim.min, dim.planned + 1, dim.multiple)
        small, enough = 0, len(numbers) - 1
        while small < enough:
            middle = (small + enough) // 2
            if _enough(schedule, {**least, name: numbers[middle]}):
                enough = middle
            else:
                small = middle + 1
        least[name] = numbers[enough]
        dims[name] = replace(dim, min=numbers[enough])
    return replace(schedule, model=replace(schedule.model, dims=dims))


def _enough(schedule: Schedule, sizes: Mapping[str, int]) -> bool:
    """Return whether all windows have a row for every tile."""
    try:
        expand(at_size(schedule, sizes))
    except ScheduleError as error:
        if error.code not in ("R091", "R092"):  # a batch of 1 may have other rows
            raise
        return False
    return True


def _rows(graph: Graph, window: Window) -> int:
    """Return the number of rows of a window; 0 if it cannot be split."""
    try:
        return row_count(graph, window.operations)
    except ScheduleError:
        return 0


def rows_at_least(bare: Schedule, windows: Mapping[Window, int], given: Collection[str]) -> dict[Window, int]:
    """Return windows with no more tiles than rows at the smallest sizes that the caller requested."""
    dims = bare.model.dims
    if not given:
        return dict(windows)
    graph = expand(at_size(bare, {name: d.min if name in given else d.planned for name, d in dims.items()})).unsplit
    fewest = {window: min(into, _rows(graph, window)) for window, into in windows.items()}
    return {window: into for window, into in fewest.items() if into > 1}
