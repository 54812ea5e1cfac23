"""Limits of expressions of named sizes, such as `b*t` up to 4096 for batches with a number of tokens. No torch.

The terms of a limited expression are positive, so smaller sizes of a range are within the limit where larger ones are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from ..errors import ScheduleError
from .expression_text import parse_size
from .limits import MAX_SIZE
from .schedule import Dimension, Model

_ALL_ORDERS = 3  # up to this many sizes, all orders are tried; with more, each of them comes first and last once


def over_limit(limits: Mapping[str, int], size: Mapping[str, int]) -> str:
    """Return the fault of a size: `b*t is 8192, the schedule is for up to 4096`; "" within all limits."""
    for text, most in limits.items():
        if (number := parse_size(text).at(size)) > most:
            return f"{text} is {number}, the schedule is for up to {most}"
    return ""


def largest_sizes(dims: Mapping[str, Dimension], limits: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the ends of a range that no size can exceed: one after another, sizes are as large as limits permit.

    Without limits, it is the one where every size has its maximum. A peak, which grows with every size, is at its
    maximum at one of them: a product with a limit is constant between two, where sums of products are convex in the
    logarithms of sizes.
    """
    names, known = list(dims), list[dict[str, int]]()
    orders = itertools.permutations(names)
    if len(names) > _ALL_ORDERS:
        orders = (tuple(turned) for at in range(len(names)) for turned in (names[at:] + names[:at],))
    for order in orders if limits else [tuple(names)]:
        size = {name: dim.min for name, dim in dims.items()}
        for name in order:
            size[name] = largest_of(name, dims[name], limits, size)
        if size not in known:
            known.append(size)
            yield size


def largest_of(name: str, dim: Dimension, limits: Mapping[str, int], size: Mapping[str, int]) -> int:
    """Return the largest value of one size beside the others within the limits, or its minimum."""
    low, high = dim.min // dim.multiple, dim.max // dim.multiple
    while low < high:
        middle = (low + high + 1) // 2
        if over_limit(limits, {**size, name: middle * dim.multiple}):
            high = middle - 1
        else:
            low = middle
    return low * dim.multiple


def limits_text(limits: Mapping[str, int]) -> str:
    """Format limits: `b*t up to 4096`."""
    return ", ".join(f"{text} up to {most}" for text, most in limits.items())


def limit_fault(model: Model, text: str, most: int) -> ScheduleError | None:
    """Return the fault of a limit of `model.limits` (R024 to R026)."""
    try:
        size = parse_size(text)
    except ScheduleError as fault:
        return fault
    unknown = sorted(size.dims - model.dims.keys())
    if unknown:
        return ScheduleError("R025", f"{text}: the size {unknown[0]!r} is not known", hint="name it in `model.dims`")
    if not size.dims or any(term.coefficient < 0 for term in size.terms):
        message = f"{text[:80]} is no sum of products of sizes"
        return ScheduleError("R026", message, hint='limit what grows with every size: "b*t"')
    planned = {name: dim.planned for name, dim in model.dims.items()}
    if not size.at(planned) <= most <= MAX_SIZE:
        message = f"{text[:80]} is {size.at(planned)} at the planned size, and limited to {most}"
        return ScheduleError(
            "R026", message[:200], hint=f"the limit holds for the planned size, and is {MAX_SIZE} at most"
        )
    return None
