"""Why the step at some sizes is not the planned one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remate_runtime.step import Graph

from ..errors import CaptureError, DimsError
from .align import Difference, difference, shapes
from .fitting import Fitter
from .guards import Guard, divided_by, first_other
from .samples import Range
from .survey import Shot, Sizes, Survey
from .words import not_captured, other_structure, place_of, unrolled

_DIVISORS = {2, 4, 8, 16}
_LARGEST_DIVISOR = 64
_LARGEST_STRIDE = 512


class Fault(msgspec.Struct, frozen=True):
    """What is wrong at `sizes`. what: in a few words, and where. traced: there is a step. error: to raise. guard: what forward decided otherwise, where that
    was seen. everywhere: no other size has the planned step either."""

    sizes: Sizes
    what: str
    error: DimsError
    traced: bool = True
    guard: Guard | None = None
    everywhere: bool = False

    def told(self, at: str) -> str:
        """What is wrong at a size that is called `at`."""
        return f"the step at {at} is another one: {self.what}" if self.traced else f"at {at} {self.what}"


def fault_at(survey: Survey, ranges: Sequence[Range], first: Shot, sizes: Sizes) -> Fault | None:
    """None where the step is the planned one. first: the planned one."""
    try:
        shot = survey.at(sizes)
    except CaptureError as error:
        what = error.message + (f" ({error.source})" if error.source else "")
        moved = {name for name, number in sizes.items() if number != first.sizes[name]}
        refused = not_captured(sizes, what, error, survey.asking.forgotten(moved))
        return Fault(sizes, what, refused, traced=False)
    found = difference(first.captured.graph, shot.captured.graph, first.captured.modules)
    if found is None:
        return None
    guard = first_other(first.log.decisions, shot.log.decisions, fitter_of(ranges, [first, shot]))
    guard = None if guard is None or guard.holds(sizes) else guard
    return _differs(first, sizes, found, guard)


def _differs(first: Shot, sizes: Sizes, found: Difference, guard: Guard | None) -> Fault:
    everywhere = found.everywhere or (guard is None and bool(unrolled(found, first.sizes, sizes)))
    error = other_structure(found, first.sizes, sizes, guard)
    return Fault(sizes, found.what + place_of(found), error, guard=guard, everywhere=everywhere)


def fitter_of(ranges: Sequence[Range], shots: Sequence[Shot]) -> Fitter:
    """Knows expressions over `ranges` for the numbers of these captures."""
    divisors = arguments(shots[0].captured.graph) | divided_by([shot.log.decisions for shot in shots]) | _DIVISORS
    useful = sorted({d for d in divisors if 1 < d <= _LARGEST_DIVISOR} | _strides(shots[0].captured.graph))
    graphs = [shot.captured.graph for shot in shots]
    sizes = [shot.sizes for shot in shots]
    return Fitter({one.name: one.numbers() for one in ranges}, sizes, useful, lambda: shapes(graphs))


def _strides(graph: Graph) -> set[int]:
    """What convolutions and pools divide a size by, one after another: products of their strides."""
    found = {1}
    for op in graph.operations[: graph.backward_start]:
        if "conv" in op.op or "pool" in op.op:
            lists = [arg for arg in op.args if isinstance(arg, tuple) and all(type(n) is int for n in arg)]
            steps = {n for each in lists[: 2 if "pool" in op.op else 1] for n in each if n > 1}
            found |= {n * step for n in found for step in steps if n * step <= _LARGEST_STRIDE}
    return found - {1}


def arguments(graph: Graph) -> set[int]:
    """All integers among the arguments of a step's operations."""
    found: set[int] = set()

    def look(value: object) -> None:
        if isinstance(value, tuple):
            for item in value:
                look(item)
        elif type(value) is int:
            found.add(abs(value))

    for op in graph.operations:
        look(op.args)
        look(tuple(op.kwargs.values()))
    return found
