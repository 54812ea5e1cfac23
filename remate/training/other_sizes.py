"""Plans a model again for inputs of other sizes, where lengths differ from batch to batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from remate_runtime.applied import size_request
from remate_runtime.errors import RemateError
from remate_runtime.format import Schedule, is_object

from ..capture.recorded import RecordedCall
from ..errors import CaptureError, DimsError
from .plan_file import applied
from .planning import planned_again
from .settings import AutoSettings

_RANGE = re.compile(r"(\w+)=(\d+)\.\.(\d+)(/\d+)?")
SIZES_DIFFER = ("inputs differ from call to call in ways that no schedule covers", "pad them to equal shapes")
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
        argument: {at: _wider(size) if at else size for at, size in sizes.items()} if is_object(sizes) else sizes
        for argument, sizes in request.dims.items()
    }
    yield request.dims


def planned_for_sizes(
    call: RecordedCall,
    attempts: Sequence[dict[str, Any]],
    settings: AutoSettings,
    known: Sequence[Schedule],
    live: Sequence[str],
    warned: set[str],
) -> tuple[list[Schedule], Any]:
    """Plan with the first `dims` that can be planned and applied, otherwise the parts of the model.

    Parts whose inputs have the same sizes in all calls have a schedule then, such as the backbone of a detector.

    Args:
        call: The call.
        attempts: `dims` for `remate.plan`.
        settings: Arguments of `auto`.
        known: The schedules so far.
        live: As for `planned_again`.
        warned: As for `planned_again`.

    Returns:
        The schedules, and the model with them.

    Raises:
        RemateError: Nothing can be planned; the error of the last `dims`.
    """
    refused = RemateError(SIZES_DIFFER[0])
    waiting = list(attempts)
    while waiting:
        dims = waiting.pop(0)
        with_dims = replace(settings, plan={**settings.plan, "dims": dims})
        try:
            planned = planned_again(call, with_dims, known, live, warned)
            return planned, applied(call.model, planned, with_dims)
        except RemateError as error:
            refused = error
            narrower = _narrowed(dims, error.works, attempts[-1]) if isinstance(error, DimsError) else None
            if narrower not in (None, dims):
                waiting.insert(0, narrower)
            else:
                settings.say(f"other sizes cannot be planned with {dims}: {first_line(error)}")
    try:
        planned = planned_again(call, settings, known, live, warned, SIZES_DIFFER)
        return planned, applied(call.model, planned, settings)
    except CaptureError:
        raise refused from None


def _narrowed(dims: dict[str, Any], works: str, needed: dict[str, Any]) -> dict[str, Any] | None:
    """Return `dims` with a smaller range that works, as that of a table of positions; None if it is not enough.

    Args:
        dims: The `dims` that cannot be planned.
        works: The range, as in `DimsError`.
        needed: The `dims` that contain no more than the call and its schedule.
    """
    match = _RANGE.fullmatch(works)
    if match is None:
        return None
    ranges = [_RANGE.fullmatch(size) for sizes in needed.values() if is_object(sizes) for size in sizes.values()]
    for needs in filter(None, ranges):
        if needs[1] == match[1] and (int(needs[2]) < int(match[2]) or int(needs[3]) > int(match[3])):
            return None

    def narrower(size: str) -> str:
        return works if size.startswith(f"{match[1]}=") else size

    return {
        argument: {at: narrower(size) for at, size in sizes.items()} if is_object(sizes) else sizes
        for argument, sizes in dims.items()
    }


def first_line(message: object) -> str:
    """Return the start of a message in one line."""
    return " ".join(line.strip("- ") for line in str(message).splitlines()[:2])


def _wider(size: str) -> str:
    """Return a range from 2 to twice its end. The batch, the first axis, seldom gets larger."""
    match = _RANGE.fullmatch(size)
    if match is None or match[4]:
        return size
    return f"{match[1]}=2..{_BEYOND * int(match[3])}"
