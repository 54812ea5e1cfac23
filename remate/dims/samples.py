"""Sizes at which to capture a model, chosen so that numbers reveal which sizes they follow from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from remate_runtime.format import Dimension, largest_sizes, over_limit

_BEYOND = 64  # how far above a narrow range samples may lie
_GRID = 4096  # numbers of a range that expressions and conditions are tried at


def range_text(name: str, least: int, most: int, multiple: int = 1) -> str:
    """Format a range as users write it: `t=16..1024/8`."""
    return f"{name}={least}..{most}" + (f"/{multiple}" if multiple > 1 else "")


class SizeRange(msgspec.Struct, frozen=True):
    """The numbers that a size may have: both ends included, in steps of `multiple`.

    Attributes:
        planned: The planned number.
        given: The ends that the caller requested; the others may move.
    """

    name: str
    min: int
    max: int
    planned: int
    multiple: int = 1
    given: tuple[bool, bool] = (False, False)

    def __str__(self) -> str:
        return range_text(self.name, self.min, self.max, self.multiple)

    def numbers(self) -> Sequence[int]:
        """Return the possible numbers, thinned to some thousands (ends and neighbours of powers of two stay)."""
        every = range(self.min, self.max + 1, self.multiple)
        if len(every) <= _GRID:
            return every
        step = len(every) // (_GRID // 2) | 1  # odd: all residues of powers of two occur
        kept = {*every[::step], *every[: _GRID // 8], *every[-_GRID // 8 :]}
        return sorted(kept)


def dimensions(ranges: Sequence[SizeRange]) -> dict[str, Dimension]:
    """Return the ranges as a file has them."""
    return {
        size.name: Dimension(min=size.min, max=size.max, multiple=size.multiple, planned=size.planned)
        for size in ranges
    }


def largest_corners(ranges: Sequence[SizeRange], limits: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the largest sizes of the ranges: one without limits."""
    return list(largest_sizes(dimensions(ranges), limits))


def contains(ranges: Sequence[SizeRange], limits: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Return whether sizes are between the ends of the ranges and within the limits."""
    return all(size.min <= sizes[size.name] <= size.max for size in ranges) and not over_limit(limits, sizes)


def within(ranges: Sequence[SizeRange], limits: Mapping[str, int], sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes, made smaller until they are within the limits: what is farthest above its minimum is halved."""
    while over_limit(limits, sizes) and any(sizes[size.name] > size.min for size in ranges):
        far = max(ranges, key=lambda size: sizes[size.name] / size.min)
        half = max(far.min, sizes[far.name] // 2 // far.multiple * far.multiple)
        sizes = {**sizes, far.name: half}
    return sizes


def spread(ranges: Sequence[SizeRange], avoid: set[int], count: int, inside: bool = False) -> list[dict[str, int]]:
    """Return `count` sizes with distinctive numbers spread over each range.

    They have no common divisors except the range's steps, are odd and even, and none is in `avoid`. Narrow ranges are
    exceeded upwards, unless `inside`.
    """
    taken = set(avoid)
    chosen: dict[str, list[int]] = {}
    for offset, size in enumerate(ranges):
        picked = _picked(size, taken, count, inside)
        taken |= set(picked)
        # Rotated, so that large numbers of several sizes do not all meet.
        chosen[size.name] = picked[offset % count :] + picked[: offset % count]
    samples = [{name: numbers[k] for name, numbers in chosen.items()} for k in range(count)]
    samples.sort(key=lambda sizes: math.prod(sizes.values()))
    return [sizes for k, sizes in enumerate(samples) if sizes not in samples[:k]]


def _picked(size: SizeRange, taken: set[int], count: int, inside: bool) -> list[int]:
    good = _standing_for_themselves(size, size.numbers(), taken)
    if len(good) < count and not inside:
        beyond = size.max + _BEYOND * size.multiple
        good = _standing_for_themselves(size, range(size.min, beyond + 1, size.multiple), taken)
    pool = good if len(good) >= count else list(size.numbers())
    picked: list[int] = []
    for k in range(count):
        target = pool[0] + (pool[-1] - pool[0]) * (k + 0.5) / count
        free = [n for n in pool if n not in picked] or pool
        apart = [n for n in free if all(math.gcd(n // size.multiple, p // size.multiple) == 1 for p in picked)] or free
        even = [n for n in apart if (n // size.multiple) % 2 == (1 if k != 1 else 0)] or apart
        picked.append(min(even, key=lambda n: abs(n - target)))
    return picked


def _standing_for_themselves(size: SizeRange, numbers: Sequence[int], taken: set[int]) -> list[int]:
    """Return primes and their doubles, in steps of the range."""
    steps = ((n, n // size.multiple) for n in numbers)
    return [n for n, k in steps if k > 4 and n not in taken and k not in taken and (_prime(k) or _prime_double(k))]


def _prime_double(k: int) -> bool:
    return k % 2 == 0 and _prime(k // 2)


def _prime(k: int) -> bool:
    return k > 1 and all(k % d for d in range(2, math.isqrt(k) + 1))
