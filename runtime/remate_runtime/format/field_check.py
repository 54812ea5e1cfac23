"""Finds all faults of fields and JSON types in a decoded file, by the structs of `format`.

msgspec stops at the first fault and gives no pointer; this check runs only after msgspec has refused a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from ..errors import ScheduleError
from .enough import EnoughFaultsError
from .limits import MAX_FAULTS
from .name_runs import unfolded
from .schedule import STATEMENTS, Statement, decoded
from .signature import escape
from .suggest import did_you_mean

_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([kKmMgGtT]?)(i?)[bB]\s*", re.ASCII)
_NAMES = {
    dict: "an object",
    list: "an array",
    str: "text",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "null",
}
_WANTED: dict[type, tuple[str, tuple[type, ...]]] = {
    inspect.StrType: ("text", (str,)),
    inspect.IntType: ("an integer", (int,)),
    inspect.FloatType: ("a number", (int, float)),
    inspect.BoolType: ("true or false", (bool,)),
    inspect.NoneType: ("null", (type(None),)),
    inspect.VarTupleType: ("an array", (list,)),
    inspect.DictType: ("an object", (dict,)),
    inspect.StructType: ("an object", (dict,)),
    inspect.LiteralType: ("text", (str,)),
    inspect.CustomType: ("an object", (dict,)),  # what `schedule.decoded` reads: a statement, types by name
}


class FieldCheck:
    """Collects the faults of a tree.

    Calls `visit(struct, pointer)` for every struct without a fault in it. `visit` may raise EnoughFaultsError. The
    check ends then, and at MAX_FAULTS of its own.
    """

    def __init__(self, visit: Callable[[msgspec.Struct, str], None]) -> None:
        self.faults: list[ScheduleError] = []
        self._visit = visit

    def walk(self, value: object, kind: type[msgspec.Struct], where: str = "") -> None:
        with suppress(EnoughFaultsError):
            self._value(value, _type_of(kind), where)

    def _add(self, fault: ScheduleError) -> None:
        self.faults.append(fault)
        if len(self.faults) >= MAX_FAULTS:
            raise EnoughFaultsError

    def _value(self, value: Any, kind: inspect.Type, where: str) -> None:
        if isinstance(kind, inspect.AnyType):
            return
        choices = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        chosen = next((choice for choice in choices if _fits(value, choice)), None)
        if chosen is None:
            wanted = " or ".join(_WANTED[type(choice)][0] for choice in choices)
            hint = _bytes_hint(value) if any(isinstance(choice, inspect.IntType) for choice in choices) else ""
            self._add(ScheduleError("R012", f"expected {wanted}, found {_NAMES[type(value)]}", where, hint))
        elif isinstance(chosen, inspect.CustomType):
            cls: Any = chosen.cls  # a union to type checkers
            if cls is Statement:
                self._statement(value, where)
            else:
                unfolded(value, self._add, where)
        elif isinstance(chosen, inspect.LiteralType):
            self._word(value, chosen, where)
        elif isinstance(chosen, inspect.StructType):
            self._struct(value, chosen, where)
        elif isinstance(chosen, inspect.DictType):
            for key, item in value.items():
                self._value(item, chosen.value_type, f"{where}/{escape(key)}")
        elif isinstance(chosen, inspect.VarTupleType) and not isinstance(chosen.item_type, inspect.AnyType):
            for index, item in enumerate(value):
                self._value(item, chosen.item_type, f"{where}/{index}")

    def _statement(self, value: dict[str, Any], where: str) -> None:
        """Check a statement. Its kind follows from the one key of STATEMENTS that it has."""
        kinds = [key for key in STATEMENTS if key in value]
        if len(kinds) == 1:
            self._struct(value, _struct_type(STATEMENTS[kinds[0]]), where)
            return
        known = ", ".join(STATEMENTS)
        if kinds:
            message, hint = f"a statement of several kinds: {', '.join(kinds)}", "make a statement of each"
        else:
            stated = next((key for key in value if key not in ("before", "note")), "")
            message = f"unknown kind of statement {stated[:80]!r}" if stated else "a statement without its kind"
            hint = did_you_mean(stated, STATEMENTS, "") + f" (kinds of statements: {known})"
        self._add(ScheduleError("R017", message, where, hint.strip()))

    def _word(self, value: str, kind: inspect.LiteralType, where: str) -> None:
        if value not in kind.values:
            words = [str(word) for word in kind.values]
            hint = did_you_mean(value, words, "write one of them")
            message = f"{value[:80]!r} is not one of {', '.join(words)}"
            self._add(ScheduleError("R013", message, where, hint))

    def _struct(self, value: dict[str, Any], kind: inspect.StructType, where: str) -> None:
        before = len(self.faults)
        known = {field.encode_name: field for field in kind.fields}
        for key in value:
            if key in known:
                continue
            self._add(_unknown(key, [name for name in known if name not in value] or list(known), where))
        for name, field in known.items():
            if name in value:
                self._value(value[name], field.type, f"{where}/{escape(name)}")
            elif field.required:
                self._add(ScheduleError("R011", f"the field {name!r} is missing", where, f"add {name!r}"))
        if len(self.faults) == before:
            self._visit(msgspec.convert(value, kind.cls, dec_hook=decoded), where)


def _unknown(key: str, names: list[str], where: str) -> ScheduleError:
    hint = did_you_mean(key, names, "delete it; remarks belong into `note`")
    return ScheduleError("R010", f"unknown field {key[:80]!r}", f"{where}/{escape(key)}", hint)


def _bytes_hint(value: object) -> str:
    """Return a size as the command line writes it; "" if the value is none."""
    words = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if words is None:
        return ""
    power = "kmgt".index(words[2].lower()) + 1 if words[2] else 0
    return f"sizes are numbers of bytes: {int(float(words[1]) * (1024 if words[3] else 1000) ** power)}"


def _fits(value: object, kind: inspect.Type) -> bool:
    # bool is a subclass of int in Python and not in JSON
    return type(value) in _WANTED[type(kind)][1]


def _struct_type(kind: type[msgspec.Struct]) -> inspect.StructType:
    inspected = _type_of(kind)
    assert isinstance(inspected, inspect.StructType)
    return inspected


@cache
def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)
