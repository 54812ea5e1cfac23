"""The position scan finds every pointer, every duplicate key and every syntax fault, whatever the nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remate_runtime.format.limits import MAX_DEPTH
from remate_runtime.format.positions import line_column, places, pointer, scan

_keys = st.text(st.sampled_from('ab/~" \\\n\u00e9'), max_size=3)
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _keys),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=3)),
    max_leaves=12,
)


def _pointers(value: Any, parts: tuple[str | int, ...] = ()) -> dict[str, Any]:
    by_name = {pointer(parts): value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        by_name |= _pointers(item, (*parts, key))
    return by_name


@given(_values, st.sampled_from([None, 2]), st.booleans())
def test_every_pointer_is_found_where_its_value_stands(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    wanted = _pointers(value)
    assert scan(text) == []
    located = places(text, wanted)
    assert located.keys() == wanted.keys()
    for where, item in wanted.items():
        place = located[where]
        assert json.JSONDecoder().raw_decode(text[place.value :].decode())[0] == item
        assert place.key <= place.value
        around = {where[:at] for at, char in enumerate(where + "/") if char == "/"}
        alone = places(text, [where])  # what nobody requested is passed over in another way
        assert alone == {name: located[name] for name in around}


@given(st.lists(_values, min_size=1, max_size=6))
def test_the_first_fault_stands_where_the_text_ends(value: list[Any]) -> None:
    """The text is cut after each item. The pointer names that item although most items were skipped."""
    for end in range(1, len(value) + 1):
        text = '{"a": 1, "b": 2, "c": ' + json.dumps(value[:end])[:-1]
        (fault,) = scan(text.encode())
        assert (fault.code, fault.where) == ("R002", f"/c/{end - 1}")


@given(st.text(st.sampled_from('{}[],:"1-.eE \ntrufalsn\\'), max_size=12))
def test_a_text_has_a_fault_exactly_if_it_is_not_json(text: str) -> None:
    try:
        json.loads(text, parse_constant=_refuse)
        fine = True
    except ValueError:
        fine = False
    faults = [fault for fault in scan(text.encode()) if fault.code == "R002"]
    assert bool(faults) != fine
    for fault in faults:
        assert 1 <= fault.line <= text.count("\n") + 1


def test_deep_nesting_takes_no_stack() -> None:
    deep = b"[" * 1_000_000
    assert [fault.code for fault in scan(deep)] == ["R071"]
    allowed = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert scan(allowed) == []


def test_every_duplicate_key_is_reported() -> None:
    faults = scan(b'{"a": 1, "b": {"c": 1,\n "c": 2}, "\\u0061": 3}')
    assert [(fault.where, fault.line, fault.column) for fault in faults] == [("/b/c", 2, 2), ("/a", 2, 11)]


@pytest.mark.parametrize(("offset", "place"), [(0, (1, 1)), (2, (1, 3)), (3, (2, 1)), (5, (2, 3))])
def test_lines_and_columns_count_from_one(offset: int, place: tuple[int, int]) -> None:
    assert line_column(b"ab\ncd", offset) == place


def _refuse(word: str) -> None:
    raise ValueError(word)
