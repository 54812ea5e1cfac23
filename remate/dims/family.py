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
from .align import Difference, Place, difference, rows
from .asked import SMALLEST, AskedSize
from .fitting import Fitter
from .guards import Guard, divided_by, first_other, guards
from .samples import Range, spread
from .survey import Shot, Sizes, Survey
from .words import only_where, other_structure, spelled, still_open, undecided, unfitted

_ROUNDS = 6  # of narrowing a range
_MORE = 12  # captures beyond the first ones, to tell expressions apart
_DIVISORS = {2, 4, 8, 16}
_LARGEST_DIVISOR = 64
_PROBES = 512  # sizes at which candidates and conditions are tried


class Family(msgspec.Struct, frozen=True):
    """A step that is the same over `ranges`. shots: at different sizes, those of the plan first; fitter: knows an expression for
    each row of numbers of theirs. said: how ranges were narrowed, for people."""

    ranges: tuple[Range, ...]
    shots: tuple[Shot, ...]
    fitter: Fitter
    said: tuple[str, ...] = ()


class _Narrowed(Exception):  # noqa: N818
    def __init__(self, to: Range, why: str) -> None:
        super().__init__(why)
        self.to, self.why = to, why


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
    for _ in range(_ROUNDS):
        try:
            return replace(_family(survey, current), said=tuple(said))
        except _Narrowed as narrowed:
            said.append(narrowed.why)
            current = [narrowed.to if each.name == narrowed.to.name else each for each in current]
    raise DimsError(f"forward decides by its sizes in too many ways: {'; '.join(said)}", hint="leave them fixed")


def _family(survey: Survey, ranges: Sequence[Range]) -> Family:
    first = survey.at({one.name: one.planned for one in ranges})
    shots = [first]
    corners = [{one.name: end(one) for one in ranges} for end in (_least, _most)]
    for sizes in [*_samples(survey, ranges, first), *corners]:
        _add(survey, ranges, shots, sizes)
    fitter = _fitter(ranges, shots)
    for _ in range(_MORE):
        sizes = _telling_apart(ranges, shots, fitter)
        if sizes is None:
            break
        _add(survey, ranges, shots, sizes)
        fitter = _fitter(ranges, shots)
    else:
        sizes = _telling_apart(ranges, shots, fitter)
        if sizes is not None:
            raise still_open(len(shots), _undecided_place(shots, fitter, sizes), sizes)
    _hold(ranges, shots, fitter)
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
    return {n for value in graph.values for n in (*value.type.shape, *(value.type.strides or ()))} | _arguments(graph)


def _arguments(graph: Graph) -> set[int]:
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


def _add(survey: Survey, ranges: Sequence[Range], shots: list[Shot], sizes: Sizes) -> None:
    """One more capture, which must have the structure of the first. Raises _Narrowed, DimsError."""
    first = shots[0]
    if any(shot.sizes == sizes for shot in shots):
        return
    try:
        shot = survey.at(sizes)
    except CaptureError as error:
        message = f"at {spelled(sizes)} {error.message}" + (f" ({error.source})" if error.source else "")
        raise DimsError(message, hint="give a range in which the model runs") from error
    found = difference(first.captured.graph, shot.captured.graph, first.captured.modules)
    if found is not None:
        shot, found = _one_size(survey, first, shot, found)
        guard = first_other(first.log.decisions, shot.log.decisions, _fitter(ranges, [first, shot]))
        if guard is not None and not guard.holds(shot.sizes):
            _narrow(ranges, guard)
        raise other_structure(found, first.sizes, shot.sizes, guard)
    shots.append(shot)


def _one_size(survey: Survey, first: Shot, other: Shot, found: Difference) -> tuple[Shot, Difference]:
    """A difference that one size alone makes, if one does: that of `other` which differs, the others as planned."""
    for name in first.sizes if len(first.sizes) > 1 else ():
        sizes = {**first.sizes, name: other.sizes[name]}
        try:
            alone = survey.at(sizes)
        except CaptureError:
            continue
        differs = difference(first.captured.graph, alone.captured.graph, first.captured.modules)
        if differs is not None:
            return alone, differs
    return other, found


def _fitter(ranges: Sequence[Range], shots: Sequence[Shot]) -> Fitter:
    divisors = _arguments(shots[0].captured.graph) | divided_by([shot.log.decisions for shot in shots]) | _DIVISORS
    useful = sorted(d for d in divisors if 1 < d <= _LARGEST_DIVISOR)
    return Fitter({one.name: one.numbers() for one in ranges}, [shot.sizes for shot in shots], useful)


def _telling_apart(ranges: Sequence[Range], shots: Sequence[Shot], fitter: Fitter) -> Sizes | None:
    """Sizes at which the most rows have candidates that differ; None if there are none. Raises DimsError for a row that has no
    candidate."""
    open_rows = []
    for row, place in rows([shot.captured.graph for shot in shots]).items():
        found = fitter.expressions(row)
        if not found:
            raise unfitted(place, row, [shot.sizes for shot in shots])
        if len(found) > 1:
            open_rows.append(found)
    best, most = None, 0
    for sizes in _probes(ranges) if open_rows else ():
        told = sum(len({_at(each, sizes) for each in found}) > 1 for found in open_rows)
        if told > most:
            best, most = sizes, told
    return best


def _undecided_place(shots: Sequence[Shot], fitter: Fitter, sizes: Sizes) -> Place:
    """The first place of which candidates differ at `sizes`."""
    every = rows([shot.captured.graph for shot in shots])
    return next(at for row, at in every.items() if len({_at(each, sizes) for each in fitter.expressions(row)}) > 1)


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


def _hold(ranges: Sequence[Range], shots: Sequence[Shot], fitter: Fitter) -> None:
    """What forward decided by sizes comes out the same at all sizes of the ranges. Raises _Narrowed, DimsError."""
    found, lost = guards([shot.log.decisions for shot in shots], fitter)
    if lost:
        raise undecided(lost[0], [one.name for one in ranges])
    probes = list(_probes(ranges)) if found else []
    for guard in found:
        if not all(guard.holds(sizes) for sizes in probes):
            _narrow(ranges, guard)
            raise only_where(guard, ranges)


def _narrow(ranges: Sequence[Range], guard: Guard) -> None:
    """Raise _Narrowed where a condition on one size leaves a range, or multiples, around what is planned, and nobody asked for
    what it takes away."""
    if len(guard.dims) != 1:
        return
    one = next(each for each in ranges if each.name in guard.dims)
    holds = [guard.holds({one.name: n}) for n in one.numbers()]
    numbers = one.numbers()
    if one.planned not in numbers or not holds[at := numbers.index(one.planned)]:
        return
    low = next((k + 1 for k in range(at, -1, -1) if not holds[k]), 0)
    high = next((k - 1 for k in range(at, len(numbers)) if not holds[k]), len(numbers) - 1)
    kept = replace(one, min=numbers[low], max=numbers[high])
    if sum(holds) == high - low + 1 > 1:
        taken = (kept.min != one.min and one.given[0]) or (kept.max != one.max and one.given[1])
        if not taken:
            why = f"the step holds for {guard} only ({guard.place}): {one.name} is from {kept.min} to {kept.max}"
            raise _Narrowed(kept, why)
    step = _step([n for n, held in zip(numbers, holds, strict=True) if held])
    every = [n for n in numbers if n % step == 0] if step else []
    if step > one.multiple and one.multiple == 1 and every == [n for n, h in zip(numbers, holds, strict=True) if h]:
        kept = replace(one, min=every[0], max=every[-1], multiple=step)
        why = f"the step holds for {guard} only ({guard.place}): {one.name} is a multiple of {step}"
        raise _Narrowed(kept, why)


def _step(numbers: Sequence[int]) -> int:
    """The distance of numbers that are multiples of it; 0 if they are none."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    return step if step and all(n % step == 0 for n in numbers) else 0
