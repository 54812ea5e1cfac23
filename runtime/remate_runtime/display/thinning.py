"""Curves with fewer points that look the same: no peak and no valley is lost."""

from __future__ import annotations

from collections.abc import Sequence


def thin(times: Sequence[int], levels: Sequence[int], buckets: int) -> tuple[list[int], list[int]]:
    """At most four points of every one of `buckets` equal stretches of time: first, lowest, highest, last.

    times: ascending. Curves that are short enough stay whole.
    """
    if len(times) <= 4 * buckets:
        return list(times), list(levels)
    start, span = times[0], max(times[-1] - times[0], 1)
    chosen: list[int] = []
    first = 0
    while first < len(times):
        bucket = (times[first] - start) * buckets // (span + 1)
        last = low = high = first
        while last + 1 < len(times) and (times[last + 1] - start) * buckets // (span + 1) == bucket:
            last += 1
            if levels[last] < levels[low]:
                low = last
            if levels[last] > levels[high]:
                high = last
        chosen += sorted({first, low, high, last})
        first = last + 1
    return [times[i] for i in chosen], [levels[i] for i in chosen]
