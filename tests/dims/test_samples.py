"""Ranges of sizes and the numbers that samples are taken from."""

from __future__ import annotations

import itertools

import pytest

from remate.dims.samples import SizeRange


@pytest.mark.parametrize("multiple", [1, 8])
def test_large_ranges_are_thinned_evenly(multiple: int) -> None:
    size = SizeRange("t", 3 * multiple, 10**7 * multiple, 4 * multiple, multiple)
    numbers = size.numbers()
    assert list(numbers) == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (size.min, size.max)
    assert 1000 < len(numbers) < 10_000
    assert max(b - a for a, b in itertools.pairwise(numbers)) < (size.max - size.min) // 1000
    assert {number // multiple % 64 for number in numbers} == set(range(64))


def test_small_ranges_are_whole() -> None:
    assert list(SizeRange("b", 2, 10, 4, 2).numbers()) == [2, 4, 6, 8, 10]
