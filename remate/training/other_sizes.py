"""Plans a model again for inputs of other sizes, where lengths differ from batch to batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from remate_runtime.applied import size_request
from remate_runtime.format import Schedule

_RANGE = re.compile(r"(\w+)=(\d+)\.\.(\d+)(/\d+)?")
_BEYOND = 2  # a longer sequence than any so far is likely


def wider_dims(
    schedules: Sequence[Schedule], args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[dict[str, Any]]:
    """Yield `dims` for `remate.plan` that hold for a call and for the sizes of its schedule, the widest first.

    Args:
        schedules: Schedules of the model, none of which fits the call.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    request = size_request(schedules[0], args, kwargs) if len(schedules) == 1 else None
    if request is None or request.alone or not request.dims:
        return
    yield {
        argument: {at: _wider(size) if at else size for at, size in sizes.items()} if isinstance(sizes, dict) else sizes
        for argument, sizes in request.dims.items()
    }
    yield request.dims


def _wider(size: str) -> str:
    """Return a range from 2 to twice its end. The batch, the first axis, seldom gets larger."""
    match = _RANGE.fullmatch(size)
    if match is None or match[4]:
        return size
    return f"{match[1]}=2..{_BEYOND * int(match[3])}"
