"""One warning for each kind of reason why the model's own forward runs."""

from __future__ import annotations

import warnings

from remate_runtime.applied.asides import Asides


def said(asides: Asides, why: str, over: bool = False) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asides.warn(why, over, ". It takes 5 KiB")
    return [str(warning.message) for warning in caught]


def test_reasons_that_differ_in_numbers_are_one_kind() -> None:
    asides = Asides()
    assert said(asides, "got f32[4,8]") == [
        "the schedule steps aside: got f32[4,8]. It takes 5 KiB\n  other calls of this kind are not reported"
    ]
    assert not said(asides, "got f32[4,16]")
    assert said(asides, "got i64[4,16]")


def test_a_call_that_exceeds_the_budget_is_worth_another_warning() -> None:
    asides = Asides()
    assert said(asides, "got f32[4,8]")
    assert said(asides, "got f32[4,9]", over=True)
    assert not said(asides, "got f32[4,10]", over=True)
    assert not said(asides, "got f32[4,11]")


def test_at_most_four_kinds_are_reported() -> None:
    asides = Asides(parts=True)
    texts = [said(asides, f"{kind}: 1") for kind in "abcde"]
    assert list(map(len, texts)) == [1, 1, 1, 1, 0]
    assert "other calls and parts of this kind are not reported" in texts[0][0]
    assert ["further reasons are not reported" in text for (text,) in texts[:4]] == [False, False, False, True]
