"""Did-you-mean hints. The search is bounded: a file may have a hundred faults and hundreds of thousands of names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

_LOOKED_AT = 20_000  # most names to consider
_CANDIDATES = 100  # most of them to compare letter by letter
_SLACK = 3  # most letters by which a misspelling may differ in length


def close_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return at most `count` of `known` that are similar to `name`, the closest first."""
    if not name or len(name) > 200:
        return []
    listed = list(islice(known, _LOOKED_AT))
    longer = list(islice((other for other in listed if other.endswith("." + name)), count))
    if longer:
        return longer
    alike = (other for other in listed if abs(len(other) - len(name)) <= _SLACK and other[-1:] == name[-1:])
    matches = get_close_matches(name, list(islice(alike, _CANDIDATES)), count, 0.75)
    if matches:
        return matches
    alike = (other for other in listed if abs(len(other) - len(name)) <= _SLACK and other[:1] == name[:1])
    return get_close_matches(name, list(islice(alike, _CANDIDATES)), count)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, before: str = "") -> str:
    """Return a hint with similar names (each after the text `before`), or `otherwise`."""
    close = close_names(name, known)
    return f"did you mean {', '.join(before + other for other in close)}?" if close else otherwise
