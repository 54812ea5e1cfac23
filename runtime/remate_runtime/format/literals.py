"""Checks literals: arguments of operations and elements of constants. Does not require torch."""

from __future__ import annotations

import math
from typing import Any, Protocol

from ..errors import ScheduleError
from .json_values import is_array, is_object
from .limits import MAX_DEPTH, MAX_ELEMENTS, MAX_INTEGER, MAX_TEXT
from .schedule import Constant
from .tensor_type import DTYPES, parse_type
from .vocabulary import CHOICES, NON_FINITE, SPELLINGS

_ARGUMENT_DEPTH = 6  # arrays and objects around an operation's `args`


class Faults(Protocol):
    """Collects faults, and offers checks that several rooms of the reader share."""

    def add(self, code: str, message: str, where: str, hint: str = "") -> None: ...
    def name(self, name: str, where: str) -> None: ...
    def text(self, text: str, where: str) -> None: ...
    def number(self, number: int, where: str) -> None: ...
    def reference(self, text: str, where: str) -> None: ...
    def tensor_type(self, text: str, where: str) -> bool: ...
    def expression(self, text: str, where: str, real: bool = False) -> None: ...
    def live_number(self, text: str, where: str) -> None: ...

    @property
    def sized(self) -> bool:
        """Return whether the file names sizes, so that expressions may replace numbers."""
        ...


def check_argument(faults: Faults, value: object, where: str, depth: int = _ARGUMENT_DEPTH) -> None:
    """Check a literal, a reference, an array, or an object with one key. depth: arrays and objects around it."""
    if type(value) is str:
        if value.startswith("%") and not value.startswith("%%"):
            faults.reference(value, where)
        elif len(value) > MAX_TEXT:
            faults.add("R073", f"a text of more than {MAX_TEXT} characters", where)
    elif is_array(value):
        if depth >= MAX_DEPTH:
            faults.add("R071", f"arrays and objects nested more than {MAX_DEPTH} deep", where)
            return
        for index, item in enumerate(value):
            if type(item) is not int or not -MAX_INTEGER - 1 <= item <= MAX_INTEGER:  # most are small integers
                check_argument(faults, item, f"{where}/{index}", depth + 1)
    elif is_object(value):
        check_object(faults, value, where)
    else:
        check_number(faults, value, where)


def check_object(faults: Faults, value: dict[str, Any], where: str) -> None:
    """Check a literal without JSON spelling, or a number that follows from live attributes. A file with named sizes may
    also have `{"size": "t+1"}` and `{"float": "1/t"}`."""
    key, item = next(iter(value.items()), ("", None))
    if key == "number" and len(value) == 1 and type(item) is str:
        faults.live_number(item, f"{where}/number")
    elif faults.sized and len(value) == 1 and key in ("size", "float") and type(item) is str and item not in NON_FINITE:
        faults.expression(item, f"{where}/{key}", key == "float")
    else:
        check_spelling(faults, value, where)


def check_spelling(faults: Faults, value: dict[str, Any], where: str) -> None:
    """Report an object that spells no literal. Valid objects are `{"dtype": "f32"}`, `{"complex": [0.0, 1.0]}` and
    similar ones."""
    fault = spelling_fault(value)
    if fault is not None:
        faults.add(fault.code, fault.message, where + fault.where, fault.hint)


def spelling_fault(value: dict[str, Any]) -> ScheduleError | None:
    """Return the fault of an object among arguments (R021, with its place in the object); None for a literal."""
    key, item = next(iter(value.items()), ("", None))
    if len(value) != 1 or key not in SPELLINGS:
        hint = f"an object in an argument has one key: {', '.join(SPELLINGS)}"
        return ScheduleError("R021", "not a literal", "", hint)
    if key == "complex":
        if is_array(item) and len(item) == 2 and all(map(_is_finite, item)):
            return None
        message = "a complex number has a real and an imaginary part"
        return ScheduleError("R021", message, "/complex", "write [0.0, 1.0]")
    if key == "number":
        return ScheduleError("R021", "not an expression of live attributes", "/number", 'write {"number": "1 - %p"}')
    if key == "size":
        hint = "name the size in `model.dims`, or write the number"
        return ScheduleError("R021", "an expression of sizes, where none is named", "", hint)
    if isinstance(item, str) and item in CHOICES[key]:
        return None
    shown = repr(item)[:80] if isinstance(item, str) else "this value"
    return ScheduleError("R021", f"{shown} is no {key}", f"/{key}", f"one of {', '.join(CHOICES[key])}")


def check_number(faults: Faults, value: object, where: str) -> None:
    """Check that a number fits 64 bits. null, true and false pass."""
    if type(value) is int and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        faults.add("R021", f"{str(value)[:40]} does not fit 64 bits", where)
    elif type(value) is float and not math.isfinite(value):
        faults.add("R021", "a number too large for 64 bits", where, 'write {"float": "inf"}')


def check_elements(faults: Faults, constant: Constant, where: str) -> None:
    """Check the elements of a constant: their number, and that each fits the dtype."""
    kind = parse_type(constant.type)
    if (
        kind.numel > MAX_ELEMENTS or kind.nbytes > MAX_ELEMENTS * DTYPES[kind.dtype][1]
    ):  # strides can spread few elements over a large storage
        hint = "make it a buffer of the model"
        faults.add(
            "R072", f"a constant that takes the place of more than {MAX_ELEMENTS} elements", f"{where}/type", hint
        )
        return
    if kind.numel != len(constant.data):
        message = f"{constant.type} has {kind.numel} elements, data {len(constant.data)}"
        faults.add("R023", message, f"{where}/data")
        return
    for index, item in enumerate(constant.data):
        if not _is_element(item, kind.dtype):
            hint = 'true or false for bool, integers in range, {"float": "inf"}, {"complex": [re, im]}'
            faults.add("R023", f"not an element of {kind.dtype}", f"{where}/data/{index}", hint)


def _is_element(item: object, dtype: str) -> bool:
    if dtype == "bool":
        return type(item) is bool
    if dtype[0] in "iu":
        low, high = _range(dtype)
        return type(item) is int and low <= item <= high
    if dtype[0] == "c":
        parts = item.get("complex") if is_object(item) and len(item) == 1 else None
        return is_array(parts) and len(parts) == 2 and all(map(_is_finite, parts))
    return _is_real(item)


def _range(dtype: str) -> tuple[int, int]:
    bits = int(dtype[1:])
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _is_real(item: object) -> bool:
    if is_object(item):
        return len(item) == 1 and item.get("float") in NON_FINITE
    return _is_finite(item)


def _is_finite(item: object) -> bool:
    if type(item) is int:
        return -MAX_INTEGER - 1 <= item <= MAX_INTEGER
    return type(item) is float and math.isfinite(item)
