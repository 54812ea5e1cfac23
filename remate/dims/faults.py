"""Explains why the step at some sizes is not the planned one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remate_runtime.flat_step import Argument, Graph
from remate_runtime.format import is_tuple

from ..errors import CaptureError, DimsError
from .align import StructuralDifference, difference, shapes
from .fitting import SizeFitter
from .guards import SizeGuard, first_other
from .samples import SizeRange
from .sampling import Sampling, Sizes, TraceSample
from .words import not_captured, other_structure, place_of, unrolled

_DIVISORS = {2, 4, 8, 16}
_LARGEST_DIVISOR = 64
_LARGEST_STRIDE = 512


class Fault(msgspec.Struct, frozen=True):
    """The fault at `sizes`.

    Attributes:
        what: A short description with the place.
        error: The error to raise.
        traced: A step was captured.
        guard: The decision of forward that differs, if known.
        everywhere: No other size has the planned step either.
    """

    sizes: Sizes
    what: str
    error: DimsError
    traced: bool = True
    guard: SizeGuard | None = None
    everywhere: bool = False

    def described(self, at: str) -> str:
        """Describe a fault at a size with the name `at`."""
        return f"the step at {at} differs: {self.what}" if self.traced else f"at {at} {self.what}"


def fault_at(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, sizes: Sizes) -> Fault | None:
    """Return the fault; None if the step is the planned one. first: the planned step."""
    try:
        trace_sample = sampling.at(sizes)
    except CaptureError as error:
        what = error.message + (f" ({error.source})" if error.source else "")
        moved = {name for name, number in sizes.items() if number != first.sizes[name]}
        refused = not_captured(sizes, what, error, sampling.asking.forgotten(moved))
        return Fault(sizes, what, refused, traced=False)
    deviation = difference(first.captured, trace_sample.captured)
    if deviation is None:
        return None
    guard = first_other(first.log.decisions, trace_sample.log.decisions, fitter_of(ranges, [first, trace_sample]))
    guard = None if guard is None or guard.holds(sizes) else guard
    return _differs(first, sizes, deviation, guard)


def _differs(first: TraceSample, sizes: Sizes, deviation: StructuralDifference, guard: SizeGuard | None) -> Fault:
    everywhere = deviation.everywhere or (guard is None and bool(unrolled(deviation, first.sizes, sizes)))
    error = other_structure(deviation, first.sizes, sizes, guard)
    return Fault(sizes, deviation.what + place_of(deviation), error, guard=guard, everywhere=everywhere)


def fitter_of(ranges: Sequence[SizeRange], trace_samples: Sequence[TraceSample]) -> SizeFitter:
    """Return a fitter over `ranges` for the numbers of these captures."""
    divisors = (
        arguments(trace_samples[0].captured.graph)
        | frozenset[int]().union(*(trace_sample.log.divisors for trace_sample in trace_samples))
        | _DIVISORS
    )
    useful = sorted({d for d in divisors if 1 < d <= _LARGEST_DIVISOR} | _strides(trace_samples[0].captured.graph))
    graphs = [trace_sample.captured.graph for trace_sample in trace_samples]
    sizes = [trace_sample.sizes for trace_sample in trace_samples]
    return SizeFitter({size.name: size.numbers() for size in ranges}, sizes, useful, lambda: shapes(graphs))


def _strides(graph: Graph) -> set[int]:
    """Return the divisors of sizes in convolutions and pools: products of their strides."""
    strides = {1}
    for op in graph.operations[: graph.backward_start]:
        if "conv" in op.op or "pool" in op.op:
            lists = [arg for arg in op.args if is_tuple(arg) and all(type(n) is int for n in arg)]
            steps = {n for each in lists[: 2 if "pool" in op.op else 1] for n in each if n > 1}
            strides |= {n * step for n in strides for step in steps if n * step <= _LARGEST_STRIDE}
    return strides - {1}


def arguments(graph: Graph) -> set[int]:
    """Return all integers among the arguments of a step's operations."""
    numbers: set[int] = set()

    def look(value: Argument) -> None:
        if isinstance(value, tuple):
            for item in value:
                look(item)
        elif type(value) is int:
            numbers.add(abs(value))

    for op in graph.operations:
        look(op.args)
        look(tuple(op.kwargs.values()))
    return numbers
