"""Entries of the model's parameters that repeat are written once: the same entries, the same order, no more than
asked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from remate_runtime.errors import ScheduleError
from remate_runtime.format.limits import MAX_PARAMETERS
from remate_runtime.format.name_runs import folded, unfolded, written_at


def spelled(entries: dict[str, Any]) -> dict[str, str]:
    def refuse(fault: ScheduleError) -> None:
        raise AssertionError(fault)

    return unfolded(entries, refuse)


def faults(entries: dict[str, Any]) -> list[tuple[str, str]]:
    results: list[ScheduleError] = []
    assert unfolded(entries, results.append) == {}
    return [(fault.code, fault.where) for fault in results]


LAYERS = {f"h.{n}.{name}": "f32[8]" for n in range(12) for name in ("ln.weight", "ln.bias", "mlp.0.w", "mlp.1.w")}


@pytest.mark.parametrize(
    ("entries", "written"),
    [
        ({}, {}),
        ({"w": "f32[]"}, {"w": "f32[]"}),
        ({"h.0.w": "f32[]"}, {"h.0.w": "f32[]"}),
        ({"0": "f32[]", "1": "f32[]"}, {"[0-1]": "f32[]"}),
        ({"h.1": "f32[]", "h.0": "f32[]"}, {"h.1": "f32[]", "h.0": "f32[]"}),
        ({"h.01.w": "f32[]", "h.02.w": "f32[]"}, {"h.01.w": "f32[]", "h.02.w": "f32[]"}),
        ({"h.0.w": "f32[]", "h.1.w": "f32[2]"}, {"h.0.w": "f32[]", "h.1.w": "f32[2]"}),
        (LAYERS, {"h.[0-11]": {"ln.weight": "f32[8]", "ln.bias": "f32[8]", "mlp.[0-1]": {"w": "f32[8]"}}}),
        (
            {"h.0.a": "f32[]", "h.0.b": "f32[]", "h.1.b": "f32[]", "h.2.b": "f32[]"},
            {"h.0.a": "f32[]", "h.[0-2]": {"b": "f32[]"}},
        ),
        ({"h.0.b": "f32[]", "h.1.b": "f32[]", "h.1.c": "f32[]"},) * 2,
        (  # the same run a second time
            {"h.0.a": "f32[]", "h.1.a": "f32[]", "w": "f32[]", "h.0.b": "f32[2]", "h.1.b": "f32[2]"},
            {"h.[0-1]": {"a": "f32[]"}, "w": "f32[]", "h.0.b": "f32[2]", "h.1.b": "f32[2]"},
        ),
    ],
)
def test_what_repeats_is_written_once(entries: dict[str, str], written: dict[str, Any]) -> None:
    assert folded(entries) == written
    assert list(spelled(written).items()) == list(entries.items())


def test_any_names_come_back_in_their_order() -> None:
    dice = random.Random(1)
    for _ in range(2_000):
        parts = [str(n) for n in range(dice.choice((2, 3)))] + ["a", "b"]
        depth, entries = dice.choice((1, 2, 3)), {}
        for _ in range(dice.randrange(24)):
            entries[".".join(dice.choice(parts) for _ in range(dice.randint(1, depth)))] = dice.choice(
                ("f32[]", "i64[]")
            )
        if dice.random() < 0.7:
            entries = dict(sorted(entries.items()))
        written = folded(entries)
        assert list(spelled(written).items()) == list(entries.items())
        for name in entries:
            result = written
            for key in written_at(written, name)[1:].split("/"):
                result = result[key]
            assert result == entries[name]


@pytest.mark.parametrize(
    ("entries", "codes"),
    [
        ({"h.[3-1]": "f32[]"}, [("R014", "/h.[3-1]")]),
        ({"h.[0-1]": {}}, [("R012", "/h.[0-1]")]),
        ({"h": {"w": "f32[]"}, "k": 3}, [("R012", "/h"), ("R012", "/k")]),
        ({"h.[0-1]": {"w": None}}, [("R012", "/h.[0-1]/w")]),
        ({"h.[0-1]": "f32[]", "h.1": "f32[]"}, [("R031", "")]),
        ({f"h.[0-{MAX_PARAMETERS}]": "f32[]"}, [("R072", "")]),
        ({"h.[0-999999999]": {"k.[0-999999999]": {"w.[0-999999999]": "f32[]"}}}, [("R072", "")]),
        ({"h" * 500 + ".[0-9]": {"w" * 10: "f32[]"}}, [("R073", "/" + "h" * 500 + ".[0-9]/" + "w" * 10)]),
    ],
)
def test_what_stands_for_too_much_or_nothing_is_refused(entries: dict[str, Any], codes: list[tuple[str, str]]) -> None:
    assert faults(entries) == codes
