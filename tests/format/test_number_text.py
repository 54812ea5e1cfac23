"""Expressions of live attributes: one spelling each, and what Python computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remate_runtime.errors import ScheduleError
from remate_runtime.format.limits import MAX_EXPRESSION
from remate_runtime.format.number_text import computed, names_of, parse_number, renamed, written_number

_NUMBERS = st.one_of(st.integers(-9, 9).map(float), st.floats(-1e30, 1e30))
_PYTHON: dict[str, Any] = {"+": "({} + {})", "-": "({} - {})", "*": "({} * {})", "/": "({} / {})", "neg": "(-{})"}
_PYTHON |= {"sqrt": "math.sqrt({})", "exp": "math.exp({})", "log": "math.log({})", "pow": "math.pow({}, {})"}


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    attribute = inner.filter(lambda tree: not isinstance(tree, float))
    return st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("neg"), attribute),
        st.tuples(st.sampled_from(["sqrt", "exp", "log"]), inner),
        st.tuples(st.just("pow"), inner, inner),
    )


TREES = st.recursive(st.one_of(st.sampled_from(["a", "h.0.p", "x-y"]), _NUMBERS), _grown, max_leaves=8)


def _python(tree: Any) -> str:
    if isinstance(tree, tuple):
        return _PYTHON[tree[0]].format(*map(_python, tree[1:]))
    return f"given[{tree!r}]" if isinstance(tree, str) else repr(tree)


def test_small_fractions_have_all_their_digits() -> None:
    """`repr` writes up to three zeros and 17 digits behind the point."""
    tree = ("pow", "a", 0.00011276163904582471)
    assert repr(parse_number(written_number(tree))) == repr(tree)


@given(TREES)
def test_each_has_one_spelling(tree: Any) -> None:
    assume(names_of(tree) and len(written_number(tree)) <= MAX_EXPRESSION)
    assert repr(parse_number(written_number(tree))) == repr(tree)


@given(TREES, st.lists(st.floats(-10, 10), min_size=3, max_size=3))
def test_it_is_what_python_computes(tree: Any, values: list[float]) -> None:
    assume(names_of(tree))
    given = dict(zip(["a", "h.0.p", "x-y"], values, strict=True))
    try:
        wanted = eval(_python(tree), {"math": math, "given": given})
    except (ArithmeticError, ValueError):
        wanted = math.nan
    try:
        result = computed(tree)([given[name] for name in names_of(tree)])
    except (ArithmeticError, ValueError):
        result = math.nan
    assert result == wanted or (math.isnan(result) and not math.isfinite(wanted))


def test_names_may_be_others() -> None:
    tree = parse_number("%a/(1 - %b.p)")
    assert names_of(tree) == ("a", "b.p")
    assert written_number(renamed(tree, lambda name: f"{name}.q")) == "%a.q/(1 - %b.p.q)"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "%",
            "1",
            "1 - 2",
            "%a+1",
            "%a  + 1",
            "1 - -%a",
            "(%a)",
            "%a*(2)",
            "%a %b",
            "%a**2",
            "%a:0",
            "max(%a, 1)",
        ),
        *("pow(%a)", "sqrt(%a, 2)", "%a + 01", "%a + 1.50", "%a.__class__()", "%a\n", "%a*9e999"),
        "(" * 40 + "%a" + ")" * 40,
        "%a" + " + %a" * 60,
    ],
)
def test_nothing_else_is_read(text: str) -> None:
    with pytest.raises(ScheduleError, match="R027"):
        parse_number(text)
