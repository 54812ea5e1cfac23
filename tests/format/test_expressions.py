"""Expressions of named sizes: one text for each, nothing evaluated but by the grammar, and bounded whatever a file
says."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remate_runtime.errors import ScheduleError
from remate_runtime.format import (
    Real,
    Size,
    constant,
    dimension,
    divided,
    parse_real,
    parse_size,
    parse_sized,
)

B, T, H = dimension("b"), dimension("t"), dimension("h")


@pytest.mark.parametrize(
    ("text", "dims", "number"),
    [
        ("7", {}, 7),
        ("0", {}, 0),
        ("b*t", {"b": 4, "t": 9}, 36),
        ("t+1", {"t": 9}, 10),
        ("s-1", {"s": 9}, 8),
        ("4*s^2", {"s": 3}, 36),
        ("(h+3)//4", {"h": 6}, 2),
        ("8*((t+7)//8)-t", {"t": 13}, 3),
        ("16*(h/4)*(w/4)", {"h": 8, "w": 12}, 96),
        ("((h+1)//2)^2", {"h": 6}, 9),
        ("-(t//8)", {"t": 17}, -2),
        ("(3*h+2)//4", {"h": 5}, 4),
        ("(5*b*t)//16", {"b": 3, "t": 7}, 6),
        ("(b*t+b+3)//4+2*t", {"b": 3, "t": 7}, 20),
        ("(b*((t+7)//8)+1)//3", {"b": 4, "t": 17}, 4),
        ("8*((b*t)//2)-b*t", {"b": 3, "t": 7}, 59),
        ("(h/4)//2", {"h": 12}, 1),
        ("b*((s*t)//2)^2", {"b": 2, "s": 3, "t": 5}, 98),
        ("(h/4+2*(t//8))//3", {"t": 17, "h": 8}, 2),
    ],
)
def test_texts_and_what_they_give(text: str, dims: dict[str, int], number: int) -> None:
    parsed = parse_size(text)
    assert str(parsed) == text
    assert parsed.at(dims) == number
    assert parsed.dims == dims.keys()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1+t", "t+1"),
        ("1*t", "t"),
        ("t*b", "b*t"),
        ("t*t*2", "2*t^2"),
        ("b*(t+1)", "b*t+b"),
        ("(t)", "t"),
        ("t-t", "0"),
        ("007*t", "7*t"),
        ("(h+9)//8", "(h+1)//8+1"),
        ("(h-1)//2", "(h+1)//2-1"),
        ("(2*h+3)//4", "(h+1)//2"),
        ("-t//8", "-(t//8)"),
        ("(5*h)/4", "h+h/4"),
        ("(8*t)//8", "t"),
        ("9//2", "4"),
        ("(b*t*5)//16", "(5*b*t)//16"),
        ("(5*b*t)//4", "b*t+(b*t)//4"),
        ("(2*b*t+5)//4", "(b*t)//2+1"),
        ("(b-2*b*t)//4", "-((2*b*t+3*b+3)//4)+b"),
        ("((t+7)//8)//2", "(t+7)//16"),
        ("((b*t)//8+1)//2", "(b*t+8)//16"),
    ],
)
def test_another_spelling_is_refused_with_the_one_that_is_meant(text: str, meant: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_size(text)
    assert (caught.value.code, caught.value.hint) == ("R024", f"write it as {meant}")
    assert str(parse_size(meant)) == meant


@pytest.mark.parametrize(
    "text",
    [
        *("", " t", "t ", "t*", "*t", "b**t", "t%8", "max(t,8)", "t.x", "__import__('os')", "b*t//2*", "(b*t)/2"),
        *("t//0", "t//b", "t^0", "t^99", "1--1", "(t", "t)", "9999999999999999999*t", "(a+b+c+d)^8", "t" * 300),
        *("(" * 100 + "t" + ")" * 100, "(2*h+1)/2", "7/2", "sqrt(t)", "٣*t", "t\n"),
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_size(text)
    assert caught.value.code == "R024"


@pytest.mark.parametrize(
    ("text", "dims"), [("t", {}), ("h/4", {"h": 6}), ("t^8", {"t": 2**31}), ("-(t^8)", {"t": 2**31})]
)
def test_what_gives_no_size_is_refused(text: str, dims: dict[str, int]) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_size(text if text[:2] != "-(" else "-t^8").at(dims)
    assert caught.value.code == "R025"


sizes = st.recursive(
    st.one_of(st.sampled_from([B, T, H]), st.integers(-40, 40).map(constant)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: _or(lambda: two[0] + two[1], two[0])),
        st.tuples(inner, inner).map(lambda two: _or(lambda: two[0] * two[1], two[0])),
        st.tuples(inner, st.integers(1, 9)).map(lambda two: _or(lambda: divided(*two), two[0])),
        st.tuples(inner, st.integers(1, 9)).map(lambda two: _or(lambda: divided(*two, exact=True), two[0])),
    ),
    max_leaves=6,
)


def _or(make: Callable[[], Size], otherwise: Size) -> Size:
    """The previous value if the new one is too large or cannot be divided."""
    try:
        return make()
    except ScheduleError:
        return otherwise


@pytest.mark.slow
@given(sizes)
@settings(max_examples=400)
def test_the_text_of_every_expression_is_read_as_it_is_written(size: Size) -> None:
    assert parse_size(str(size)) == size


@given(sizes, sizes, st.integers(1, 12), st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=400)
def test_arithmetic_is_that_of_numbers(left: Size, right: Size, by: int, b: int, t: int, h: int) -> None:
    dims = {"b": b, "t": t, "h": h}
    try:
        first, second = left.at(dims), right.at(dims)
    except ScheduleError:  # a division that leaves a rest here
        return
    values = [
        (lambda: left + right, first + second),
        (lambda: left * right, first * second),
        (lambda: divided(left, by), first // by),
    ]
    for make, number in values:
        assert (_or(make, constant(number))).at(dims) == number
    try:
        exact = divided(left, by, exact=True)
    except ScheduleError:
        return
    if first % by:
        with pytest.raises(ScheduleError, match="R025"):
            exact.at(dims)
    else:
        assert exact.at(dims) == first // by


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1/(b*t)", 1 / 21),
        ("2/(n-1)", 2 / 8),
        ("sqrt(t)", math.sqrt(7)),
        ("1/sqrt(t)", 1 / math.sqrt(7)),
        ("0.1/t", 0.1 / 7),
        ("t", 7.0),
        ("t/2", 3.5),
        ("(b*t)/3", 7.0),
        ("sqrt(b)/t", math.sqrt(3) / 7),
        ("1/(t//2)", 1 / 3),
    ],
)
def test_floats_are_rounded_once(text: str, number: float) -> None:
    parsed = parse_real(text)
    assert str(parsed) == text
    assert parsed.at({"b": 3, "t": 7, "n": 9}) == number


@pytest.mark.parametrize(
    "text", ["", "1", "1/2", "1.0/t", "1/b/t", "log(t)", "sqrt(sqrt(t))", "1e999/t", "inf", "nan/t", "1/(t", "sqrt t"]
)
def test_what_is_no_float_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_real(text)
    assert caught.value.code == "R024"


@pytest.mark.parametrize("text", ["1/(t-7)", "sqrt(t-8)"])
def test_a_float_that_there_is_not(text: str) -> None:
    parsed: Real = parse_real(text)
    with pytest.raises(ScheduleError) as caught:
        parsed.at({"t": 7})
    assert caught.value.code == "R025"


@pytest.mark.parametrize(
    ("text", "dims", "plain"),
    [
        ("f32[b,t,768]{768*t,768,1}", {"b": 2, "t": 5}, "f32[2,5,768]"),  # contiguous
        ("f32[b,t]{1,b}", {"b": 2, "t": 5}, "f32[2,5]{1,2}"),
        ("f32[b,t]{1,b}", {"b": 1, "t": 5}, "f32[1,5]"),  # the stride of a size of 1 does not count
        ("f32[b,t]{1,b}", {"b": 3, "t": 0}, "f32[3,0]"),
        ("i64[]@cpu", {}, "i64[]@cpu"),
        ("bf16[t+1]", {"t": 5}, "bf16[6]"),
    ],
)
def test_types_at_a_size(text: str, dims: dict[str, int], plain: str) -> None:
    parsed = parse_sized(text)
    assert str(parsed) == text
    assert str(parsed.at(dims)) == plain


@pytest.mark.parametrize("text", ["f32[t-9]", "f32[b]{b-9}", "f32[t^8,t^8]", "f64[2]{t^8}"])
def test_types_that_no_tensor_has(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_sized(text).at({"b": 8, "t": 8 if "-" in text else 200})
    assert caught.value.code == "R025"


@pytest.mark.parametrize(
    "text", ["f32[b", "f31[b]", "f32[b,]", "f32[b]{1,1}", "f32[ b]", "f32[b]]", "f32[" + "b," * 70 + "b]"]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_sized(text)
    assert caught.value.code in ("R020", "R024")


def test_random_texts_are_expressions_or_faults_at_once() -> None:
    dice = random.Random(0)
    words = ["b", "t", "1", "8", "99", "+", "-", "*", "//", "/", "^", "(", ")", "sqrt", ",", ".", "_", " ", "%"]
    accepted, refused = 0, set[str]()
    for _ in range(4000):
        text = "".join(dice.choices(words, k=dice.randint(1, 40)))
        for parse in (parse_size, parse_real, parse_sized):
            try:
                parsed = parse(text)
            except ScheduleError as fault:
                refused.add(fault.code)
            else:
                accepted += 1
                assert str(parsed) == text
    assert accepted > 50
    assert refused == {"R020", "R024"}
