"""One training step at several sizes: captured, compared, and found to be one and the same step for a whole range."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Real, Size
from remate_runtime.step import Graph

from ..errors import CaptureError, DimsError
from .align import Place, Row, difference, rows, where_strides_tell
from .asked import SMALLEST, AskedSize
from .blame import sizes_of_place, sizes_of_row
from .faults import arguments, fault_at, fitter_of
from .fitting import Fitter
from .guards import guards
from .narrowing import Narrowed, by_condition, by_search
from .samples import Range, spread
from .survey import Shot, Sizes, Survey
from .words import still_open, undecided, unfitted

_ROUNDS = 4  # of narrowing each range
_MORE = 12  # captures beyond the first ones, to tell expressions apart
_PROBES = 512  # sizes at which candidates and conditions are tried


class Family(msgspec.Struct, frozen=True):
    """A step that is the same over `ranges`. shots: at different sizes, those of the plan first; fitter: knows an expression for
    each row of numbers of theirs. said: how ranges were narrowed, for people."""

    ranges: tuple[Range, ...]
    shots: tuple[Shot, ...]
    fitter: Fitter
    said: tuple[str, ...] = ()


def asked_ranges(sizes: Iterable[AskedSize], planned: Sizes) -> tuple[Range, ...]:
    """What was asked, with the default ends: from 2 (the first multiple of the steps) to what is planned."""
    made = []
    for size in sizes:
        low, high, step = size.min, size.max, size.multiple
        at = planned[size.name]
        least = -(-max(low or SMALLEST, 1) // step) * step
        most = (high or at) // step * step
        if not least <= at <= most:
            raise DimsError(
                f"{size.name!r} is {at}, and its range starts at {least}", hint="plan with a larger example of it"
            )
        made.append(Range(size.name, least, most, at, step, (low is not None, high is not None)))
    return tuple(made)


def family(survey: Survey, ranges: Sequence[Range]) -> Family:
    """The step of `survey` over `ranges`, or over what is left of them where nobody gave their ends. Raises DimsError where it
    is not one step, with what differs and where; CaptureError where a size cannot be captured."""
    current, said = list(ranges), list[str]()
    for _ in range(_ROUNDS * len(current) + 1):
        try:
            return replace(_family(survey, current), said=tuple(said))
        except Narrowed as narrowed:
            said.append(narrowed.why)
            current = [narrowed.to if each.name == narrowed.to.name else each for each in current]
    raise DimsError(f"forward decides by its sizes in too many ways: {'; '.join(said)}", hint="leave them fixed")


def _family(survey: Survey, ranges: Sequence[Range]) -> Family:
    first = survey.at({one.name: one.planned for one in ranges})
    shots = [first]
    corners = [{one.name: end(one) for one in ranges} for end in (_least, _most)]
    for sizes in [*_samples(survey, ranges, first), *corners]:
        _add(survey, ranges, shots, sizes)
    fitter = fitter_of(ranges, shots)
    for left in range(_MORE, -1, -1):
        apart = _telling_apart(survey, ranges, shots, fitter)
        if apart is None:
            break
        if not left:
            sizes, row = apart
            raise still_open(len(shots), row.place, row.names, sizes)
        _add(survey, ranges, shots, apart[0])
        fitter = fitter_of(ranges, shots)
    _hold(survey, ranges, shots, fitter)
    return Family(tuple(ranges), tuple(shots), fitter)


def _least(one: Range) -> int:
    return one.min


def _most(one: Range) -> int:
    return one.max


def _samples(survey: Survey, ranges: Sequence[Range], first: Shot) -> list[Sizes]:
    """Where to capture. In a narrow range also beyond it, as long as the step there is the same."""
    avoid, count = _numbers(first.captured.graph), len(ranges) + 1  # and the plan, and corners
    wanted = spread(ranges, avoid, count)
    beyond = [sizes for sizes in wanted if any(not one.min <= sizes[one.name] <= one.max for one in ranges)]
    try:
        for sizes in beyond:
            if difference(first.captured.graph, survey.at(sizes).captured.graph, first.captured.modules):
                return spread(ranges, avoid, count, inside=True)
    except CaptureError:
        return spread(ranges, avoid, count, inside=True)
    return wanted


def _numbers(graph: Graph) -> set[int]:
    """All that stand in a step, so that samples are none of them."""
    return {n for value in graph.values for n in (*value.type.shape, *(value.type.strides or ()))} | arguments(graph)


def _add(survey: Survey, ranges: Sequence[Range], shots: list[Shot], sizes: Sizes) -> None:
    """One more capture, which must have the structure of the first. Raises Narrowed, DimsError."""
    if any(shot.sizes == sizes for shot in shots):
        return
    fault = fault_at(survey, ranges, shots[0], sizes)
    if fault is not None:
        raise by_search(survey, ranges, shots[0], fault)
    shots.append(survey.at(sizes))


def _telling_apart(
    survey: Survey, ranges: Sequence[Range], shots: Sequence[Shot], fitter: Fitter
) -> tuple[Sizes, _Open] | None:
    """Sizes at which the most rows have candidates that differ, and one of these; None if there are none. Raises DimsError for a row that has no
    candidate."""
    graphs = [shot.captured.graph for shot in shots]
    open_rows: list[_Open] = []
    for row, place in rows(graphs).items():
        found = fitter.expressions(row)
        if not found:
            names = sizes_of_row(survey, ranges, shots, row)
            raise unfitted(place, row, [shot.sizes for shot in shots], names)
        if len(found) > 1:
            open_rows.append(_Open(place, found, _axes(graphs, fitter, row)))
    best, most = None, 0
    for sizes in _probes(ranges) if open_rows else ():
        told = sum(each.differs(sizes) for each in open_rows)
        if told > most:
            best, most = sizes, told
    return None if best is None else (best, next(each for each in open_rows if each.differs(best)))


class _Open(msgspec.Struct, frozen=True):
    """Several expressions for one row. axes: of a row of strides, the sizes of which one must not be 1."""

    place: Place
    found: Sequence[Size | Real]
    axes: Sequence[Size | Real]

    def differs(self, sizes: Sizes) -> bool:
        """Whether they give several numbers at some sizes."""
        if self.axes and all(_at(axis, sizes) == 1 for axis in self.axes):
            return False
        return len({_at(each, sizes) for each in self.found}) > 1

    @property
    def names(self) -> list[str]:
        """The sizes that they follow from."""
        return sorted(frozenset[str]().union(*(each.dims for each in self.found)))


def _axes(graphs: Sequence[Graph], fitter: Fitter, row: Row) -> list[Size | Real]:
    """What is known of the axes of a row of strides that are not told everywhere."""
    axes = where_strides_tell(graphs).get(row, ()) if None in row else ()
    return [found[0] for axis in axes if (found := fitter.expressions(axis))]


def _at(expression: Size | Real, sizes: Sizes) -> int | float | None:
    try:
        return expression.at(sizes)
    except ScheduleError:
        return None


def _probes(ranges: Sequence[Range]) -> Iterator[Sizes]:
    """Sizes within the ranges: all of a small one, else some by chance (always the same ones), and ends."""
    numbers = [one.numbers() for one in ranges]
    names = [one.name for one in ranges]
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


def _hold(survey: Survey, ranges: Sequence[Range], shots: Sequence[Shot], fitter: Fitter) -> None:
    """What forward decided by sizes comes out the same at all sizes of the ranges. Raises Narrowed, DimsError."""
    found = guards([shot.log.decisions for shot in shots], fitter)
    probes = list(_probes(ranges))
    for guard in found.split if found.lost else ():
        if len(guard.dims) == 1 and not all(guard.holds(sizes) for sizes in probes):
            raise by_condition(ranges, guard)  # what is not known is decided on its other side, perhaps
    if found.lost:
        raise undecided(found.lost[0], sizes_of_place(survey, ranges, shots[0], found.lost[0]))
    for guard in found.guards:
        if not all(guard.holds(sizes) for sizes in probes):
            raise by_condition(ranges, guard)
