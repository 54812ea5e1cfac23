"""Finds the sizes that a number of a step depends on, for messages, by captures in which a single size differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import CaptureError
from .align import Row, difference, rows
from .samples import SizeRange
from .sampling import Sampling, TraceSample


def sizes_of_row(
    sampling: Sampling, ranges: Sequence[SizeRange], trace_samples: Sequence[TraceSample], row: Row
) -> list[str]:
    """Return the sizes that the numbers of one place depend on. row: the numbers at `trace_samples`."""
    steps = [trace_sample.captured for trace_sample in trace_samples]

    def moved(other: TraceSample) -> bool:
        if difference(steps[0], other.captured):
            return True
        every = rows([*steps, other.captured])
        return any(each[:-1] == row and each[-1] != each[0] for each in every)

    return _those(sampling, ranges, trace_samples[0], moved)


def sizes_of_place(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, place: str) -> list[str]:
    """Return the sizes that decisions at a line of the user's code depend on."""

    def taken(trace_sample: TraceSample) -> list[tuple[object, ...]]:
        return [(d.comparison, d.left, d.right, d.held) for d in trace_sample.log.decisions if d.place == place]

    return _those(sampling, ranges, first, lambda other: taken(other) != taken(first))


def _those(
    sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, moved: Callable[[TraceSample], bool]
) -> list[str]:
    """Return names of sizes whose change moves the number; all names if no single size moves it."""
    names: list[str] = []
    for size in ranges:
        for number in {size.min, size.max} - {size.planned}:
            try:
                sample = sampling.at({**first.sizes, size.name: number})
            except CaptureError:
                continue
            if moved(sample):
                names.append(size.name)
                break
    return names or [size.name for size in ranges]
