"""Narrows a range if the step is not the planned one in all of it, by a condition of forward or by further captures.

Sizes at which the step differs are assumed to be below a number (a kernel wider than its input), above one, or between
multiples (a reshape). `family` then proves that the step is the same in the remaining range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from remate_runtime.format import over_limit

from ..errors import DimsError
from .faults import Fault, fault_at
from .guards import SizeGuard
from .samples import SizeRange
from .sampling import Sampling, TraceSample
from .words import instead, only_where

At = Callable[[int], Fault | None]


class Narrowed(Exception):  # noqa: N818
    """to: the remaining range. why: the reason as text."""

    def __init__(self, to: SizeRange, why: str) -> None:
        super().__init__(why)
        self.to, self.why = to, why


def by_condition(ranges: Sequence[SizeRange], guard: SizeGuard) -> Exception:
    """Return what to raise if a condition does not hold in all of the ranges.

    Narrowed if it leaves a range of one size, or multiples, around the planned size, and the caller did not request
    what it excludes; else DimsError.
    """
    size = next(each for each in ranges if each.name in guard.dims)
    kept = _where_holds(size, guard) if len(guard.dims) == 1 else None
    if kept is None:
        return only_where(guard, ranges)
    steps = f"a multiple of {kept.multiple}" if kept.multiple > size.multiple else f"from {kept.min} to {kept.max}"
    why = f"the step holds for {guard} only ({guard.place}): {size.name} is {steps}"
    return _settled(size, kept, why, only_where(guard, ranges))


def by_search(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, fault: Fault) -> Exception:
    """Return what to raise for a fault at some sizes.

    Narrowed if the step is the planned one from a different end of one range, or at multiples, and the caller did not
    request what that excludes; else DimsError.

    Args:
        sampling: Captures.
        ranges: The ranges.
        first: The planned step.
        fault: The fault.
    """
    fault = _reduced(sampling, ranges, first, fault)
    name = _culprit(ranges, fault)
    if fault.guard is not None and len(fault.guard.dims) == 1:
        narrowed = by_condition(ranges, fault.guard)
        return narrowed if isinstance(narrowed, Narrowed) else _with_hint(fault.error, narrowed)
    size = next(each for each in ranges if each.name == name)
    if fault.everywhere or fault.sizes[name] == size.planned:
        return fault.error
    faults: dict[int, Fault | None] = {}

    def at(number: int) -> Fault | None:
        if number not in faults:
            faults[number] = fault_at(sampling, ranges, first, {**fault.sizes, name: number})
        return faults[number]

    kept = _where_planned(size, fault.sizes[name], at)
    if kept is None:
        return fault.error
    return _settled(size, kept, _why(size, kept, faults), fault.error)


def _settled(size: SizeRange, kept: SizeRange, why: str, refused: DimsError) -> Exception:
    """Return Narrowed, or what to raise if the caller requested more than is kept."""
    least, most = kept.min > size.min and size.given[0], kept.max < size.max and size.given[1]
    if kept.min == kept.max and size.min != size.max:
        return refused
    if least or most or (kept.multiple > size.multiple and any(size.given)):
        return instead(refused, kept)
    return Narrowed(kept, why)


def _with_hint(error: DimsError, other: Exception) -> DimsError:
    """Return the error, with the range that works if it is known."""
    hint = getattr(other, "hint", "")
    return DimsError(error.message, hint) if hint else error


def _reduced(sampling: Sampling, ranges: Sequence[SizeRange], first: TraceSample, fault: Fault) -> Fault:
    """Return the same kind of fault with as many planned sizes as possible: each remaining size is necessary for it."""
    for size in ranges:
        sizes = {**fault.sizes, size.name: size.planned}
        if sizes not in (fault.sizes, first.sizes) and not over_limit(sampling.asking.limits, sizes):
            fault = fault_at(sampling, ranges, first, sizes) or fault
    return fault


def _culprit(ranges: Sequence[SizeRange], fault: Fault) -> str:
    """Return the size to narrow among those that cause a fault together.

    Preferred is one that is smaller than planned and whose lower end the caller did not give.
    """
    moved = [size for size in ranges if fault.sizes[size.name] != size.planned]
    below = [size for size in moved if fault.sizes[size.name] < size.planned]
    return min(below or moved, key=lambda size: size.given[0]).name


def _where_planned(size: SizeRange, failed: int, at: At) -> SizeRange | None:
    """Return the rest of a range without the number that failed; None if it is empty."""
    if failed > size.planned:
        below = range(failed, size.planned - 1, -size.multiple)
        return None if at(size.planned) else replace(size, max=_nearest(below, at))
    step = next((d for d in _steps(size) if at(size.planned - d) is None), None)
    if at(size.planned):
        return None
    if step is None:  # nothing below
        step = next((d for d in _steps(size, upwards=True) if at(size.planned + d) is None), None)
        return None if step is None else replace(size, min=size.planned, max=size.max // step * step, multiple=step)
    least = _nearest(range(-(-size.min // step) * step, size.planned + 1, step), at)
    if least <= failed and failed % step == 0:
        least = _nearest(range(failed + step, size.planned + 1, step), at)
    return replace(size, min=least, max=size.max // step * step, multiple=step)


def _steps(size: SizeRange, upwards: bool = False) -> list[int]:
    """Return steps that lead to the planned size, and from there to a further number of the range."""
    room = size.max - size.planned if upwards else size.planned - size.min
    return [d for d in range(size.multiple, room + 1, size.multiple) if size.planned % d == 0]


def _nearest(numbers: Sequence[int], at: At) -> int:
    """Return the first of `numbers` from which on there is no fault. At the last number there is none."""
    failed, works = -1, 0
    while works < len(numbers) - 1 and at(numbers[works]):
        failed, works = works, min(2 * works + 1, len(numbers) - 1)
    while works - failed > 1:
        middle = (failed + works) // 2
        failed, works = (middle, works) if at(numbers[middle]) else (failed, middle)
    return numbers[works]


def _why(size: SizeRange, kept: SizeRange, faults: Mapping[int, Fault | None]) -> str:
    """Return the reason as text: `t is from 5: at t=4 …`."""
    parts: list[tuple[str, int]] = []
    if kept.multiple > size.multiple:
        parts.append((f"a multiple of {kept.multiple}", size.planned - size.multiple))
    below = [n for n, fault in faults.items() if fault is not None and n < kept.min and n % kept.multiple == 0]
    if below:
        parts.append((f"from {kept.min}", max(below)))
    lines: list[str] = []
    for what, number in parts:
        fault = faults.get(number)
        lines.append(f"{what}" + (f" ({fault.described(f'{size.name}={number}')})" if fault is not None else ""))
    return f"{size.name} is {', '.join(lines)}"


def _where_holds(size: SizeRange, guard: SizeGuard) -> SizeRange | None:
    """Return the part of a range around the planned size in which a condition holds, or the multiples for which it
    does."""
    numbers = size.numbers()
    holds = [guard.holds({size.name: n}) for n in numbers]
    if size.planned not in numbers or not holds[at := numbers.index(size.planned)]:
        return None
    low = next((k + 1 for k in range(at, -1, -1) if not holds[k]), 0)
    high = next((k - 1 for k in range(at, len(numbers)) if not holds[k]), len(numbers) - 1)
    if sum(holds) == high - low + 1 > 1:
        return replace(size, min=numbers[low], max=numbers[high])
    step = _step([n for n, held in zip(numbers, holds, strict=True) if held])
    every = [n for n in numbers if n % step == 0] if step else []
    if step > size.multiple and size.multiple == 1 and every == [n for n, h in zip(numbers, holds, strict=True) if h]:
        return replace(size, min=every[0], max=every[-1], multiple=step)
    return None


def _step(numbers: Sequence[int]) -> int:
    """Return the common step of numbers that are multiples of it; 0 if they are not."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    return step if step and all(n % step == 0 for n in numbers) else 0
