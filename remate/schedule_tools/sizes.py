"""Evaluates a schedule over its range of sizes: whether each size is legal, and which sizes are within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import BindError, ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format import (
    Dimension,
    Model,
    Schedule,
    at_size,
    checked_size,
    input_leaves,
    largest_of,
    largest_sizes,
    open_axes,
    over_limit,
    parse_type,
    spelled,
)
from remate_runtime.link import SizedLinks, fitted, link, simulate
from remate_runtime.support.quantities import size as quantity

from .analysis import Analysis, analyse
from .figures import refreshed

_ALL = 3  # up to this many dimensions, all corners are evaluated; with more, some
_LADDER = 4  # sizes of each other dimension for which the largest first dimension is searched

Size = dict[str, int]


class AtSize(msgspec.Struct, frozen=True):
    """peak, baseline: bytes. recomputes: number of recomputations at this size."""

    dims: Size
    peak: int
    baseline: int
    recomputes: int


class BudgetedRange(msgspec.Struct, frozen=True):
    """What the budget allows over the range of a schedule. corners: results at the ends of the range. largest: sizes
    within the budget whose first dimension is as large as possible for the others; empty if the budget holds at every
    corner."""

    budget: int
    corners: tuple[AtSize, ...]
    largest: tuple[AtSize, ...]
    never: tuple[Size, ...]  # sizes at which even the smallest first dimension exceeds the budget

    @property
    def everywhere(self) -> bool:
        return all(corner.peak <= self.budget for corner in self.corners)


def schedule_at(schedule: Schedule, dims: Mapping[str, int]) -> Schedule:
    """The plain schedule for a size, with its plan and figures at that size. Raises BindError, ScheduleError."""
    plain, dropped, recomputes = fitted(schedule, dims)
    if is_planned(schedule, dims):
        return plain
    size = checked_size(schedule.model, dims)
    remarks = [f"at {spelled(size)}, with the times of the size that was planned"]
    remarks += (
        [f"{dropped} of {recomputes} recomputations are left out: the budget does not need them here"]
        if dropped
        else []
    )
    updated = refreshed(plain).schedule
    over = updated.solve.peak - updated.solve.budget
    remarks += [f"over the budget by {quantity(over)}"] if over > 0 else []
    return replace(updated, note="\n".join([*filter(None, [plain.note]), *remarks]))


def size_of(recorded: Model, live: Model) -> Size:
    """The size at which a live model was captured, from its inputs. Raises BindError if they do not have one size of
    the range."""
    given = {leaf.name: parse_type(leaf.text) for leaf in input_leaves(live.inputs)}
    sizes: Size = {}
    for leaf in input_leaves(recorded.inputs):
        shape = given[leaf.name].shape if leaf.name in given else ()
        for axis, name in open_axes(leaf.text, recorded.dims).items():
            if axis < len(shape):
                sizes.setdefault(name, shape[axis])
    lacking = [name for name in recorded.dims if name not in sizes]
    if lacking:
        raise BindError(f"no input of the model has the size {lacking[0]}")
    return checked_size(recorded, sizes)


def at_the_size_of(opened: Analysis, other: Analysis) -> Analysis:
    """Open a schedule with named sizes at the planned size of another one, if its range includes that, so that the two
    can be compared."""
    dims = {name: dim.planned for name, dim in other.schedule.model.dims.items()}
    if not dims or dims.keys() != opened.schedule.model.dims.keys():
        return opened
    try:
        return replace(analyse(at_size(opened.schedule, dims)), schedule=opened.schedule)
    except BindError:
        return opened


def is_planned(schedule: Schedule, dims: Mapping[str, int]) -> bool:
    """Whether this is the size for which the schedule was planned."""
    declared = schedule.model.dims
    return all(number == declared[name].planned for name, number in checked_size(schedule.model, dims).items())


def over_range(schedule: Schedule) -> BudgetedRange:
    """Evaluate the corners of the range. If some exceed the budget, find the largest sizes that do not, assuming that
    the peak grows with every size. Raises ScheduleError for a size at which the step is not legal."""
    budget, declared = schedule.solve.budget, schedule.model.dims
    links = SizedLinks()
    corners = tuple(evaluated(schedule, size, links) for size in corner_sizes(schedule.model))
    if all(corner.peak <= budget for corner in corners):
        return BudgetedRange(budget, corners, (), ())
    first, *others = declared
    largest_else = {name: declared[name].max for name in others[_ALL - 1 :]}
    others = others[: _ALL - 1]
    largest_sizes: list[AtSize] = []
    never: list[Size] = []
    for numbers in itertools.product(*(_ladder(declared[name]) for name in others)):
        rest = {**dict(zip(others, numbers, strict=True)), **largest_else}
        if over_limit(schedule.model.limits, {**rest, first: declared[first].min}):
            continue
        largest = _largest(schedule, first, rest, links)
        largest_sizes.append(largest) if largest else never.append(rest)
    return BudgetedRange(budget, corners, tuple(largest_sizes), tuple(never))


def faults_at_corners(schedule: Schedule) -> list[ScheduleError]:
    """Faults at other sizes, although the planned size is legal: at the ends of the range, and at odd sizes in between.
    A fault names the first size at which it occurs."""
    faults: dict[tuple[str, str], ScheduleError] = {}
    odd = {name: _odd(dim) for name, dim in schedule.model.dims.items()}
    between = [] if over_limit(schedule.model.limits, odd) else [odd]
    for size in (*corner_sizes(schedule.model), *between):
        try:
            expand(at_size(schedule, size))
        except ScheduleError as error:
            for fault in error.faults:
                message = f"{fault.message} (at {spelled(size)})"
                faults.setdefault(
                    (fault.code, fault.where), ScheduleError(fault.code, message, fault.where, fault.hint)
                )
    return list(faults.values())


def corner_sizes(model: Model) -> Iterator[Size]:
    """The ends of the range within its limits, the largest first. With more than three dimensions, only some of the
    corners."""
    if not model.limits:
        yield from _corners(model.dims)
        return
    largest = [*largest_sizes(model.dims, model.limits)]
    others = (size for size in _corners(model.dims) if size not in largest and not over_limit(model.limits, size))
    yield from (*largest, *others)


def _corners(declared: Mapping[str, Dimension]) -> Iterator[Size]:
    least, most = ({name: getattr(dim, end) for name, dim in declared.items()} for end in ("min", "max"))
    if len(declared) > _ALL:
        yield from (most, least, *({**most, name: least[name]} for name in declared))
        return
    ends = ((dim.max, dim.min) if dim.max > dim.min else (dim.max,) for dim in declared.values())
    for numbers in itertools.product(*ends):
        yield dict(zip(declared, numbers, strict=True))


def evaluated(schedule: Schedule, dims: Size, links: SizedLinks | None = None) -> AtSize:
    """Peak and number of recomputations at a size. Raises ScheduleError. links: steps of the schedule at other sizes,
    which save time."""
    expanded = expand(fitted(schedule, dims, links).schedule)
    peak = simulate(link(expanded.graph, expanded.recomputes, expanded.pages)).peak
    baseline = simulate(link(expanded.graph)).peak if expanded.recomputes or expanded.pages else peak
    return AtSize(dims, peak, baseline, len(expanded.recomputes))


def _largest(schedule: Schedule, first: str, rest: Size, links: SizedLinks) -> AtSize | None:
    """The largest size of `first` within the budget, by bisection."""
    dim, budget = schedule.model.dims[first], schedule.solve.budget
    within = largest_of(first, dim, schedule.model.limits, {**rest, first: dim.min})
    low, high = dim.min // dim.multiple, within // dim.multiple
    best = None
    while low <= high:
        middle = (low + high + 1) // 2
        here = evaluated(schedule, {first: middle * dim.multiple, **rest}, links)
        if here.peak <= budget:
            best, low = here, middle + 1
        else:
            high = middle - 1
    return best


def _ladder(dim: Dimension) -> list[int]:
    """The planned size, the ends, and some sizes in between, each about half of the next."""
    steps = {dim.min, dim.planned, dim.max}
    number = dim.max
    while number > dim.min and len(steps) < _LADDER:
        steps.add(number)
        number = number // 2 // dim.multiple * dim.multiple
    return sorted(steps)


def _odd(dim: Dimension) -> int:
    """A size between the ends, odd if possible."""
    middle = (dim.min + dim.max) // 2 // dim.multiple
    middle += 1 - middle % 2 if (middle + 1) * dim.multiple <= dim.max else 0
    return max(dim.min, middle * dim.multiple)
