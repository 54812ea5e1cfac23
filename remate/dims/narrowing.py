"""Where a range can end when the step is not the planned one in all of it: known from a condition that forward was seen to
decide by, or looked for by more captures.

Numbers of a size at which the step is another one are taken to lie below some number (a kernel that is wider than what it is laid
over), above one, or beside multiples (a reshape). Whether the step is one in all that is left is for `family` to prove, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ..errors import DimsError
from .faults import Fault, fault_at
from .guards import SizeGuard
from .samples import SizeRange
from .sampling import Sampling, TraceSample
from .words import instead, only_where

At = Callable[[int], Fault | None]


class Narrowed(Exception):  # noqa: N818
    """to: what is left of a range. why: in words."""

    def __init__(self, to: SizeRange, why: str) -> None:
        super().__init__(why)
        self.to, self.why = to, why


def by_condition(ranges: Sequence[SizeRange], guard: SizeGuard) -> Exception:
    """What to raise where a condition does not hold in all of the ranges: Narrowed if it leaves a range of one size, or multiples,
    around what is planned, and nobody requested what it takes away; else DimsError."""
    one = next(each for each in ranges if each.name in guard.dims)
    kept = _where_holds(one, guard) if len(guard.dims) == 1 else None
    if kept is None:
        return only_where(guard, ranges)
    steps = f"a multiple of {kept.multiple}" if kept.multiple > one.multiple else f"from {kept.min} to {kept.max}"
    why = f"the step holds for {guard} only ({guard.place}): {one.name} is {steps}"
    return _settled(one, kept, why, only_where(guard, ranges))


def by_search(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, fault: Fault) -> Exception:
    """What to raise for a fault at some sizes: Narrowed if the step is the planned one from, or in steps of, another number of one
    size, and nobody requested what that takes away; else DimsError. first: the planned step."""
    fault = _reduced(sampling, ranges, first, fault)
    name = _culprit(ranges, fault)
    if fault.guard is not None and len(fault.guard.dims) == 1:
        found = by_condition(ranges, fault.guard)
        return found if isinstance(found, Narrowed) else _with_hint(fault.error, found)
    one = next(each for each in ranges if each.name == name)
    if fault.everywhere or fault.sizes[name] == one.planned:
        return fault.error
    faults: dict[int, Fault | None] = {}

    def at(number: int) -> Fault | None:
        if number not in faults:
            faults[number] = fault_at(sampling, ranges, first, {**fault.sizes, name: number})
        return faults[number]

    kept = _where_planned(one, fault.sizes[name], at)
    if kept is None:
        return fault.error
    return _settled(one, kept, _why(one, kept, faults), fault.error)


def _settled(one: SizeRange, kept: SizeRange, why: str, refused: DimsError) -> Exception:
    """Narrowed, or what to raise where somebody requested more than is kept."""
    least, most = kept.min > one.min and one.given[0], kept.max < one.max and one.given[1]
    if kept.min == kept.max and one.min != one.max:
        return refused
    if least or most or (kept.multiple > one.multiple and any(one.given)):
        return instead(refused, kept)
    return Narrowed(kept, why)


def _with_hint(error: DimsError, other: Exception) -> DimsError:
    """The error, with the range that works if the other one knows it."""
    hint = getattr(other, "hint", "")
    return DimsError(error.message, hint) if hint else error


def _reduced(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, fault: Fault) -> Fault:
    """The same kind of fault with as many sizes as possible as planned: none of those that are left can be without it."""
    for one in ranges:
        sizes = {**fault.sizes, one.name: one.planned}
        if sizes not in (fault.sizes, first.sizes):
            fault = fault_at(sampling, ranges, first, sizes) or fault
    return fault


def _culprit(ranges: Sequence[SizeRange], fault: Fault) -> str:
    """Of the sizes that make a fault together, the one whose range is to end: smaller than planned, if possible one of which nobody
    gave the lower end."""
    moved = [one for one in ranges if fault.sizes[one.name] != one.planned]
    below = [one for one in moved if fault.sizes[one.name] < one.planned]
    return min(below or moved, key=lambda one: one.given[0]).name


def _where_planned(one: SizeRange, failed: int, at: At) -> SizeRange | None:
    """What is left of a range without the number that failed; None if it is nothing."""
    if failed > one.planned:
        below = range(failed, one.planned - 1, -one.multiple)
        return None if at(one.planned) else replace(one, max=_nearest(below, at))
    step = next((d for d in _steps(one) if at(one.planned - d) is None), None)
    if at(one.planned):
        return None
    if step is None:  # nothing below
        step = next((d for d in _steps(one, upwards=True) if at(one.planned + d) is None), None)
        return None if step is None else replace(one, min=one.planned, max=one.max // step * step, multiple=step)
    least = _nearest(range(-(-one.min // step) * step, one.planned + 1, step), at)
    if least <= failed and failed % step == 0:
        least = _nearest(range(failed + step, one.planned + 1, step), at)
    return replace(one, min=least, max=one.max // step * step, multiple=step)


def _steps(one: SizeRange, upwards: bool = False) -> list[int]:
    """Steps that lead to what is planned, and from there to another number of the range."""
    room = one.max - one.planned if upwards else one.planned - one.min
    return [d for d in range(one.multiple, room + 1, one.multiple) if one.planned % d == 0]


def _nearest(numbers: Sequence[int], at: At) -> int:
    """The first of `numbers` from which on there is no fault, if faults end somewhere; at the last one there is none."""
    failed, works = -1, 0
    while works < len(numbers) - 1 and at(numbers[works]):
        failed, works = works, min(2 * works + 1, len(numbers) - 1)
    while works - failed > 1:
        middle = (failed + works) // 2
        failed, works = (middle, works) if at(numbers[middle]) else (failed, middle)
    return numbers[works]


def _why(one: SizeRange, kept: SizeRange, faults: Mapping[int, Fault | None]) -> str:
    """`t is from 5: at t=4 …`."""
    told = []
    if kept.multiple > one.multiple:
        told.append((f"a multiple of {kept.multiple}", one.planned - one.multiple))
    below = [n for n, fault in faults.items() if fault is not None and n < kept.min and n % kept.multiple == 0]
    if below:
        told.append((f"from {kept.min}", max(below)))
    lines = []
    for what, number in told:
        fault = faults.get(number)
        lines.append(f"{what}" + (f" ({fault.told(f'{one.name}={number}')})" if fault is not None else ""))
    return f"{one.name} is {', '.join(lines)}"


def _where_holds(one: SizeRange, guard: SizeGuard) -> SizeRange | None:
    """The part of a range around what is planned in which a condition holds, or the multiples for which it does."""
    numbers = one.numbers()
    holds = [guard.holds({one.name: n}) for n in numbers]
    if one.planned not in numbers or not holds[at := numbers.index(one.planned)]:
        return None
    low = next((k + 1 for k in range(at, -1, -1) if not holds[k]), 0)
    high = next((k - 1 for k in range(at, len(numbers)) if not holds[k]), len(numbers) - 1)
    if sum(holds) == high - low + 1 > 1:
        return replace(one, min=numbers[low], max=numbers[high])
    step = _step([n for n, held in zip(numbers, holds, strict=True) if held])
    every = [n for n in numbers if n % step == 0] if step else []
    if step > one.multiple and one.multiple == 1 and every == [n for n, h in zip(numbers, holds, strict=True) if h]:
        return replace(one, min=every[0], max=every[-1], multiple=step)
    return None


def _step(numbers: Sequence[int]) -> int:
    """The distance of numbers that are multiples of it; 0 if they are none."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    return step if step and all(n % step == 0 for n in numbers) else 0
