"""A training step at several sizes: captured, compared, and proven to be the same step for a whole range."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import Graph
from remate_runtime.format import Real, Size

from ..errors import CaptureError, DimsError
from .align import Row, RowOrigin, difference, rows, where_strides_tell
from .blame import sizes_of_place, sizes_of_row
from .faults import arguments, fault_at, fitter_of
from .fitting import SizeFitter
from .guards import SizeDecisions, SizeGuard, guards
from .narrowing import Narrowed, by_condition, by_search
from .plain_attributes import without_unfitted
from .quotients import quotients
from .requested_sizes import SMALLEST, RequestedSize
from .samples import SizeRange, contains, largest_corners, spread, within
from .sampling import Sampling, Sizes, TraceSample
from .words import still_open, undecided, unfitted

_ROUNDS = 4  # of narrowing each range
_MORE = 12  # captures beyond the first ones, to tell expressions apart
_PROBES = 512  # sizes at which candidates and conditions are tried


class Family(msgspec.Struct, frozen=True):
    """A step that is the same over `ranges`.

    Attributes:
        trace_samples: Captures at different sizes, the planned one first.
        fitter: Has an expression for each row of their numbers.
        limits: Of expressions of the sizes.
        untracked: Forward may decide by numbers that it takes from sizes, in a way that is not known.
        said: How ranges were narrowed, as text.
    """

    ranges: tuple[SizeRange, ...]
    trace_samples: tuple[TraceSample, ...]
    fitter: SizeFitter
    limits: dict[str, int]
    untracked: bool = False
    said: tuple[str, ...] = ()


def requested_ranges(sizes: Iterable[RequestedSize], planned: Sizes | None = None) -> tuple[SizeRange, ...]:
    """Return the requested ranges with default ends: from 2 (the first multiple of the steps) to the planned size.
    planned: default, the sizes of the example."""
    ranges: list[SizeRange] = []
    for size in sizes:
        low, high, step = size.min, size.max, size.multiple
        at = size.planned if planned is None else planned[size.name]
        least = -(-max(low or SMALLEST, 1) // step) * step
        most = (high or at) // step * step
        if not least <= at <= most:
            raise DimsError(
                f"{size.name!r} is {at}, and its range starts at {least}", hint="plan with a larger example of it"
            )
        given = low is not None, high is not None and not size.lower
        ranges.append(SizeRange(size.name, least, most, at, step, given))
    return tuple(ranges)


def planned_at(ranges: Sequence[SizeRange], planned: Sizes) -> tuple[SizeRange, ...]:
    """Return the ranges with other planned sizes."""
    return tuple(replace(size, planned=planned[size.name]) for size in ranges)


def family(sampling: Sampling, ranges: Sequence[SizeRange]) -> Family:
    """Return the step of `sampling` over `ranges`, narrowed where the caller did not give their ends.

    Raises:
        DimsError: The step is not the same in all of the ranges; with the difference and its place.
        CaptureError: A size cannot be captured.
    """
    current, said = list(ranges), list[str]()
    for _ in range(_ROUNDS * len(current) + 1):
        try:
            return replace(_family(sampling, current), said=tuple(said))
        except Narrowed as narrowed:
            said.append(narrowed.why)
            current = [narrowed.to if each.name == narrowed.to.name else each for each in current]
    raise DimsError(f"forward decides by its sizes in too many ways: {'; '.join(said)}", hint="leave them fixed")


def _family(sampling: Sampling, ranges: Sequence[SizeRange]) -> Family:
    first = sampling.at({size.name: size.planned for size in ranges})
    trace_samples = [first]
    corners = [{size.name: size.min for size in ranges}, *largest_corners(ranges, sampling.asking.limits)]
    for sizes in [*_samples(sampling, ranges, first), *corners]:
        _add(sampling, ranges, trace_samples, sizes)
    fitter = fitter_of(ranges, trace_samples)
    for left in range(_MORE, -1, -1):
        apart = _telling_apart(sampling, ranges, trace_samples, fitter)
        if apart is None:
            break
        if not left:
            sizes, row = apart
            if row is None:
                break
            raise still_open(len(trace_samples), row.place, row.names, sizes)
        _add(sampling, ranges, trace_samples, apart[0])
        fitter = fitter_of(ranges, trace_samples)
    decided = guards([trace_sample.log.decisions for trace_sample in trace_samples], fitter)
    probes = list(_probes(ranges, sampling.asking.limits))
    _hold(sampling, ranges, trace_samples, decided, probes)
    untracked = decided.uneven or _untracked(trace_samples, fitter, decided.split, probes)
    known = without_unfitted(trace_samples, fitter, probes)
    return Family(tuple(ranges), known, fitter, sampling.asking.limits, untracked)


def _samples(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample) -> list[Sizes]:
    """Return sizes to capture. For a narrow range also sizes beyond it, as long as the step there is the same.

    Sizes that are captured already are beyond the range, or in it, for the same reason.
    """
    avoid, count = _numbers(first.captured.graph), len(ranges) + 1  # and the plan, and corners
    known = [sizes for sizes in sampling.earlier if _stand_for_themselves(sizes, ranges, avoid)]
    if len(known) >= count:
        return known[:count]
    limits = sampling.asking.limits
    wanted = spread(ranges, avoid, count)
    beyond = [sizes for sizes in wanted if not contains(ranges, limits, sizes)]
    try:
        for sizes in beyond:
            if difference(first.captured, sampling.at(sizes).captured):
                return [within(ranges, limits, each) for each in spread(ranges, avoid, count, inside=True)]
    except CaptureError:
        return [within(ranges, limits, each) for each in spread(ranges, avoid, count, inside=True)]
    return wanted


def _stand_for_themselves(sizes: Sizes, ranges: Sequence[SizeRange], avoid: set[int]) -> bool:
    """Return whether sizes are neither a corner of the ranges nor among the numbers of the planned step."""
    return not any(sizes[size.name] in {size.min, size.max, *avoid} for size in ranges)


def _numbers(graph: Graph) -> set[int]:
    """Return all numbers in a step, so that samples avoid them."""
    return {n for value in graph.values for n in (*value.type.shape, *(value.type.strides or ()))} | arguments(graph)


def _add(sampling: Sampling, ranges: Sequence[SizeRange], trace_samples: list[TraceSample], sizes: Sizes) -> None:
    """Add a capture, which must have the structure of the first. Raises Narrowed, DimsError."""
    if any(trace_sample.sizes == sizes for trace_sample in trace_samples):
        return
    fault = fault_at(sampling, ranges, trace_samples[0], sizes)
    if fault is not None:
        raise by_search(sampling, ranges, trace_samples[0], fault)
    trace_samples.append(sampling.at(sizes))


def _telling_apart(
    sampling: Sampling, ranges: Sequence[SizeRange], trace_samples: Sequence[TraceSample], fitter: SizeFitter
) -> tuple[Sizes, _Open | None] | None:
    """Return sizes at which the most rows have differing candidates, and one of these rows; None if there are none.

    Numbers of forward count as rows, and are not returned.

    Raises:
        DimsError: A row has no candidates.
    """
    graphs = [trace_sample.captured.graph for trace_sample in trace_samples]
    open_rows: list[_Open] = []
    for row, place in rows([trace_sample.captured for trace_sample in trace_samples]).items():
        candidates = fitter.expressions(row)
        if not candidates:
            names = sizes_of_row(sampling, ranges, trace_samples, row)
            raise unfitted(place, row, [trace_sample.sizes for trace_sample in trace_samples], names)
        if len(candidates) > 1:
            open_rows.append(_Open(place, candidates, _axes(graphs, fitter, row)))
    numbers = quotients([trace_sample.log for trace_sample in trace_samples], fitter)
    open_numbers = [each for each in numbers if each.expressions]
    best, most = None, 0
    for sizes in _probes(ranges, sampling.asking.limits) if open_rows or open_numbers else ():
        distinguished = sum(each.differs(sizes) for each in (*open_rows, *open_numbers))
        if distinguished > most:
            best, most = sizes, distinguished
    return None if best is None else (best, next((each for each in open_rows if each.differs(best)), None))


class _Open(msgspec.Struct, frozen=True):
    """Several candidate expressions for a row. axes: for a row of strides, sizes of which at least one must not be
    1."""

    place: RowOrigin
    candidates: Sequence[Size | Real]
    axes: Sequence[Size | Real]

    def differs(self, sizes: Sizes) -> bool:
        """Return whether the expressions give different numbers at some sizes."""
        if self.axes and all(_at(axis, sizes) == 1 for axis in self.axes):
            return False
        return len({_at(each, sizes) for each in self.candidates}) > 1

    @property
    def names(self) -> list[str]:
        """Return the sizes in the expressions."""
        return sorted(frozenset[str]().union(*(each.dims for each in self.candidates)))


def _axes(graphs: Sequence[Graph], fitter: SizeFitter, row: Row) -> list[Size | Real]:
    """Return the known expressions of the axes of a row of strides that are not defined everywhere."""
    axes = where_strides_tell(graphs).get(row, ()) if None in row else ()
    return [sizes[0] for axis in axes if (sizes := fitter.expressions(axis))]


def _at(expression: Size | Real, sizes: Sizes) -> int | float | None:
    try:
        return expression.at(sizes)
    except ScheduleError:
        return None


def _probes(ranges: Sequence[SizeRange], limits: Mapping[str, int]) -> Iterator[Sizes]:
    """Yield sizes within the ranges and their limits."""
    yield from (within(ranges, limits, sizes) for sizes in _in_box(ranges))


def _in_box(ranges: Sequence[SizeRange]) -> Iterator[Sizes]:
    """Yield sizes within the ranges: all of a small range, else a deterministic random choice, and the ends."""
    numbers = [size.numbers() for size in ranges]
    names = [size.name for size in ranges]
    total = 1
    for each in numbers:
        total *= len(each)
    if total <= _PROBES:
        for picked in itertools.product(*numbers):
            yield dict(zip(names, picked, strict=True))
        return
    chance = random.Random(0)
    for k, each in enumerate(numbers):
        for number in _thinned(each):
            yield {name: number if at == k else numbers[at][-1] for at, name in enumerate(names)}
    for _ in range(_PROBES // 4):
        yield {name: chance.choice(each) for name, each in zip(names, numbers, strict=True)}


def _thinned(numbers: Sequence[int]) -> list[int]:
    if len(numbers) <= _PROBES:
        return list(numbers)
    step = len(numbers) // (_PROBES // 2) | 1
    return sorted({*numbers[: _PROBES // 4], *numbers[-_PROBES // 4 :], *numbers[::step]})


def _hold(
    sampling: Sampling,
    ranges: Sequence[SizeRange],
    trace_samples: Sequence[TraceSample],
    decided: SizeDecisions,
    probes: Sequence[Sizes],
) -> None:
    """Check that forward's decisions by sizes have the same outcome at all sizes. Raises Narrowed, DimsError."""
    for guard in decided.split if decided.lost else ():
        if len(guard.dims) == 1 and not all(guard.holds(sizes) for sizes in probes):
            raise by_condition(ranges, guard)  # an unknown decision may lie on its other side
    if decided.lost:
        raise undecided(decided.lost[0], sizes_of_place(sampling, ranges, trace_samples[0], decided.lost[0]))
    for guard in decided.guards:
        if not all(guard.holds(sizes) for sizes in probes):
            raise by_condition(ranges, guard)


def _untracked(
    trace_samples: Sequence[TraceSample], fitter: SizeFitter, split: Sequence[SizeGuard], probes: Sequence[Sizes]
) -> bool:
    """Return whether forward takes plain numbers from sizes, computes numbers that no expression gives, or may decide
    by several conditions together that no trace sample has in this combination."""
    logs = [trace_sample.log for trace_sample in trace_samples]
    if any(log.reads != logs[0].reads for log in logs):
        return True
    seen = {_outcomes(split, trace_sample.sizes) for trace_sample in trace_samples}
    if any(_outcomes(split, sizes) not in seen for sizes in probes):
        return True
    return not all(number.follows(probes) for number in quotients(logs, fitter))


def _outcomes(conditions: Sequence[SizeGuard], sizes: Sizes) -> tuple[bool, ...]:
    return tuple(condition.holds(sizes) for condition in conditions)
