"""A value that is computed at its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(compute: Callable[[], T]) -> Callable[[], T]:
    """Return a function that computes at its first call and then returns the same result.

    Unlike `functools.cache` it makes no function of the kind that a capture looks for among all objects of the process:
    each new one would cost the next capture a search of 50 ms and more.

    Args:
        compute: Called once, unless several threads make the first call.

    Returns:
        The function.
    """
    results: list[T] = []

    def result() -> T:
        if not results:
            results.append(compute())
        return results[0]

    return result
