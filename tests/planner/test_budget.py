"""Spellings of budgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remate.budget import BudgetError, parse_budget


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 << 30),
        ("512MB", 512_000_000),
        ("1.5 GiB", 3 << 29),
        (" 2 kib ", 2048),
        ("1000000", 1_000_000),
        ("1_000_000", 1_000_000),
        ("7B", 7),
        (4096, 4096),
        ("1TB", 10**12),
    ],
)
def test_bytes(text: str | int, nbytes: int) -> None:
    assert parse_budget(text).resolve(123) == nbytes


@pytest.mark.parametrize(("text", "nbytes"), [("60%", 600), ("33.3 %", 333), ("150%", 1500), (".5%", 5)])
def test_shares(text: str, nbytes: int) -> None:
    assert parse_budget(text).resolve(1000) == nbytes


@pytest.mark.parametrize(
    "junk", ["", "GiB", "%", "-1GiB", "-5%", "0", "0%", "1e9", "4G", "4 GiB 3", "nan", "inf", "0.1B", "9" * 5000]
)
def test_junk(junk: str) -> None:
    with pytest.raises(BudgetError, match="budget"):
        parse_budget(junk)


@pytest.mark.parametrize("junk", [0.6, None, True, b"4GiB", 0, -3])
def test_wrong_types(junk: Any) -> None:
    with pytest.raises(BudgetError, match="budget"):
        parse_budget(junk)


@pytest.mark.slow
@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        budget = parse_budget(text)
    except BudgetError:
        return
    assert (budget.size is None) != (budget.share is None)
