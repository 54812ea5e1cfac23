"""Fitting returns all expressions that give known numbers, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remate.dims.fitting import SizeFitter
from remate.dims.samples import SizeRange, spread

NAMES = {"b": range(2, 65), "t": range(2, 1025)}
SIZES = [{"b": 13, "t": 97}, {"b": 29, "t": 206}, {"b": 43, "t": 541}, {"b": 61, "t": 883}, {"b": 2, "t": 2}]


def fitter(sizes: list[dict[str, int]]) -> SizeFitter:
    return SizeFitter(NAMES, sizes, (2, 3, 4, 8))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("t+1", lambda b, t: t + 1),
        ("768*t", lambda b, t: 768 * t),
        ("16*b*t^2+16", lambda b, t: 16 * b * t * t + 16),
        ("b*t+4*b", lambda b, t: b * t + 4 * b),
        ("(t+7)//8", lambda b, t: (t + 7) // 8),
        ("8*((t+7)//8)-t", lambda b, t: -t % 8),
        ("3*b*((t+1)//2)", lambda b, t: 3 * b * ((t + 1) // 2)),
        ("((b+3)//4)*((t+3)//4)", lambda b, t: (b + 3) // 4 * ((t + 3) // 4)),
        ("t+t//2", lambda b, t: 3 * t // 2),
    ],
)
def test_an_expression_is_found(text: str, number: Callable[..., int]) -> None:
    expressions = fitter(SIZES).sizes([number(**sizes) for sizes in SIZES])
    assert text in [str(size) for size in expressions]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("(5*b*t)//16", lambda n: n // 16),
        ("b*t+(2*b*t+2)//3", lambda n: (n - 7) // 3 + 3),
        ("16*((5*b*t+15)//16)", lambda n: -(-n // 16) * 16),
        ("16*((5*b*t+15)//16)-5*b*t", lambda n: -n % 16),
        ("5*b*t-16*((5*b*t)//16)", lambda n: n % 16),
        ("(5*b*t+8)//24", lambda n: (n // 8 + 1) // 3),
    ],
)
def test_quotients_of_sizes_of_tensors(text: str, number: Callable[[int], int]) -> None:
    whole = [5 * at["b"] * at["t"] for at in SIZES]
    rows = [tuple(whole), tuple(n // 8 for n in whole)]
    expressions = SizeFitter(NAMES, SIZES, (2, 3, 4, 8, 16), lambda: rows).sizes([number(n) for n in whole])
    assert text in [str(size) for size in expressions]


def test_what_fits_by_accident_is_kept_too() -> None:
    """No length has a remainder of 1, so (t+6)//8 equals (t+7)//8."""
    sizes = [{"b": 13, "t": t} for t in (64, 98, 206, 541, 883, 1012)]
    expressions = [str(size) for size in fitter(sizes).sizes([(s["t"] + 7) // 8 for s in sizes])]
    assert {"(t+7)//8", "(t+6)//8"} <= set(expressions)


def test_floats_to_the_last_bit() -> None:
    for text, number in [
        ("1/(b*t)", lambda b, t: 1 / (b * t)),
        ("2/(t-1)", lambda b, t: 2 / (t - 1)),
        ("1/sqrt(t)", lambda b, t: 1 / math.sqrt(t)),
        ("sqrt(t)", lambda b, t: math.sqrt(t)),
        ("t", lambda b, t: float(t)),
        ("t/8", lambda b, t: t / 8),
    ]:
        row = [number(**sizes) for sizes in SIZES]
        assert text in [str(real) for real in fitter(SIZES).reals(row)]
        assert fitter(SIZES).reals([math.nextafter(row[0], 9.0), *row[1:]]) == []
    assert fitter(SIZES).reals([math.log(sizes["t"]) for sizes in SIZES]) == []


def test_a_bound_is_nowhere_less() -> None:
    row = [n * 31 % 1009 for n in (5, 900, 77, 4321, 12)]
    bound = fitter(SIZES).bound(row)
    assert all(bound.at(sizes) >= number for sizes, number in zip(SIZES, row, strict=True))


def test_a_bound_is_close_where_it_is_planned_and_at_both_ends() -> None:
    """A regression test: the bound was a multiple of a product without a constant, twice as large at the planned size."""
    row = [1_100_000, 2_000_000, 4_000_000, 5_000_000, 250_000]  # of more or less b*t, and something
    bound = fitter(SIZES).bound(row)
    values = [bound.at(sizes) for sizes in SIZES]
    assert values[0] == row[0]
    assert values[-1] <= 1_100_000
    told: list[int | None] = [row[0], None, None, row[3], row[4]]
    ends = fitter(SIZES).bound(told)
    assert [ends.at(SIZES[k]) >= row[k] for k in (0, 3, 4)] == [True] * 3


@settings(max_examples=30)
@given(st.integers(1, 64), st.integers(0, 64), st.integers(0, 64))
def test_what_is_found_gives_the_numbers(c: int, k: int, d: int) -> None:
    row = [c * sizes["b"] * sizes["t"] + d * sizes["t"] + k for sizes in SIZES]
    expressions = fitter(SIZES).sizes(row)
    assert expressions
    assert all(size.at(sizes) == number for size in expressions for sizes, number in zip(SIZES, row, strict=True))


def test_samples_are_told_apart() -> None:
    ranges = [SizeRange("b", 2, 64, 32), SizeRange("t", 16, 1024, 1024, 8)]
    avoid = {12, 64, 768}
    sizes = spread(ranges, avoid, 4)
    for item in ranges:
        numbers = [s[item.name] for s in sizes]
        assert len(set(numbers)) == len(sizes) == 4
        assert not set(numbers) & avoid
        assert all(n % item.multiple == 0 and item.min <= n <= item.max for n in numbers)
        assert {n // item.multiple % 2 for n in numbers} == {0, 1}
        steps = [n // item.multiple for n in numbers]
        assert all(math.gcd(a, b) == 1 for k, a in enumerate(steps) for b in steps[:k])


def test_a_narrow_range_is_left_unless_it_must_not_be() -> None:
    assert any(s["b"] > 4 for s in spread([SizeRange("b", 2, 4, 4)], set(), 3))
    assert all(s["b"] <= 4 for s in spread([SizeRange("b", 2, 4, 4)], set(), 3, inside=True))
