"""Paths of modules with runs of numbers: `h.[0-11].drop` represents twelve paths. Does not require torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

RUN = re.compile(r"\[(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})\]")
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def fold_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Fold paths that differ by consecutive numbers at one place, place by place from the last.

    `unfold_paths` is the inverse, up to order.
    """
    folded = [tuple(path.split(".")) for path in paths]
    for place in reversed(range(max(map(len, folded), default=0))):
        folded = _fold_place(folded, place)
    return tuple(".".join(parts) for parts in folded)


def _fold_place(paths: list[tuple[str, ...]], place: int) -> list[tuple[str, ...]]:
    alike: dict[tuple[str | None, ...], list[int]] = {}
    for parts in paths:
        if place < len(parts) and NUMBER.fullmatch(parts[place]):
            alike.setdefault((*parts[:place], None, *parts[place + 1 :]), []).append(int(parts[place]))
        else:
            alike[parts] = []
    folded: list[tuple[str, ...]] = []
    for key, numbers in alike.items():
        if not numbers:
            folded.append(tuple(part or "" for part in key))
        for first, last in _runs(sorted(set(numbers))):
            text = str(first) if first == last else f"[{first}-{last}]"
            folded.append(tuple(text if part is None else part for part in key))
    return folded


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for number in numbers:
        if last is None or number != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = number
        last = number
    if first is not None and last is not None:
        yield first, last


def unfold_paths(folded: Iterable[str]) -> Iterator[str]:
    """Yield every path of the folded ones, in order; the last number varies fastest."""
    for text in folded:
        parts = [_spelled(part) for part in text.split(".")]
        yield from (".".join(path) for path in product(*parts))


def _spelled(part: str) -> Iterable[str]:
    run = RUN.fullmatch(part)
    return (part,) if run is None else map(str, range(int(run[1]), int(run[2]) + 1))


def count_paths(folded: str) -> int:
    """Return the number of paths of a folded path; 0 if a run ends before it begins."""
    runs = (RUN.fullmatch(part) for part in folded.split("."))
    return prod(max(0, int(run[2]) - int(run[1]) + 1) for run in runs if run is not None)
