"""Of which sizes something in a step follows, for messages: found by captures in which one size alone is another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import CaptureError
from .align import Row, difference, rows
from .samples import SizeRange
from .sampling import Sampling, TraceSample


def sizes_of_row(
    sampling: Sampling, ranges: Sequence[SizeRange], trace_samples: Sequence[TraceSample], row: Row
) -> list[str]:
    """The sizes that the numbers of one place follow from. row: they, at `trace_samples`."""
    graphs = [trace_sample.captured.graph for trace_sample in trace_samples]

    def moved(other: TraceSample) -> bool:
        if difference(graphs[0], other.captured.graph, trace_samples[0].captured.modules):
            return True
        every = rows([*graphs, other.captured.graph])
        return any(each[:-1] == row and each[-1] != each[0] for each in every)

    return _those(sampling, ranges, trace_samples[0], moved)


def sizes_of_place(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, place: str) -> list[str]:
    """The sizes that decisions at a line of the user's code follow from."""

    def taken(trace_sample: TraceSample) -> list[tuple[object, ...]]:
        return [(d.comparison, d.left, d.right, d.held) for d in trace_sample.log.decisions if d.place == place]

    return _those(sampling, ranges, first, lambda other: taken(other) != taken(first))


def _those(
    sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, moved: Callable[[TraceSample], bool]
) -> list[str]:
    """Names of sizes of which another number moves something; all names if none does alone."""
    found = []
    for one in ranges:
        for number in {one.min, one.max} - {one.planned}:
            try:
                other = sampling.at({**first.sizes, one.name: number})
            except CaptureError:
                continue
            if moved(other):
                found.append(one.name)
                break
    return found or [one.name for one in ranges]
