"""Where things stand in a JSON text: line and column of JSON pointers, duplicate keys, syntax faults.

Used only when something is wrong, or to point at it: the fast path never scans. Iterative, one pass, memory bounded by
the nesting and by what is asked for. Needs no torch.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..errors import ScheduleError
from .limits import MAX_DEPTH, MAX_DIGITS, MAX_FAULTS
from .signature import escape

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_BREAK = re.compile("\n")
_WORD = re.compile(r"[A-Za-z]+|.", re.DOTALL)
_MARKER = re.compile(r"(<{7}|\|{7}|={7}|>{7})(?![<|=>])")
_CONFLICTS = re.compile(r"^<{7}(?!<)", re.MULTILINE)
_POINTS_AT_KEY = frozenset({"R003", "R010"})  # faults of a key rather than of its value


class InstanceSpan(msgspec.Struct, frozen=True):
    """Offsets in the text of a value and of its key (the value's own where it has none)."""

    value: int
    key: int


class Scan(msgspec.Struct):
    """What a pass over the text found. faults: syntax, nesting, numbers (the pass ends there) and duplicate keys."""

    faults: list[ScheduleError]
    places: dict[str, InstanceSpan]


def pointer(parts: Iterable[str | int]) -> str:
    """JSON pointer of a path: `("a/b", 3)` -> `/a~1b/3`."""
    return "".join(f"/{escape(str(part))}" for part in parts)


def line_column(text: str, offset: int) -> tuple[int, int]:
    """1-based line and column (in characters) of an offset."""
    line = text.count("\n", 0, offset) + 1
    return line, offset - text.rfind("\n", 0, offset)


def locate(text: str, faults: Sequence[ScheduleError]) -> list[ScheduleError]:
    """The same faults with line and column, in the order of the text.

    A pointer to what is not in the text takes the place of its nearest ancestor that is.
    """
    todo = [fault for fault in faults if not fault.line]
    if not todo:
        return sorted(faults, key=_place)
    places = scan(text, [fault.where for fault in todo]).places
    placed = [fault for fault in faults if fault.line]
    starts = [0, *(found.end() for found in _BREAK.finditer(text))]
    for fault in todo:
        where = fault.where
        while where not in places and where:
            where = where.rpartition("/")[0]
        place = places.get(where, InstanceSpan(0, 0))
        offset = place.key if fault.code in _POINTS_AT_KEY else place.value
        line = bisect_right(starts, offset)
        column = offset - starts[line - 1] + 1
        placed.append(ScheduleError(fault.code, fault.message, fault.where, fault.hint, line, column))
    return sorted(placed, key=_place)


def _place(fault: ScheduleError) -> tuple[int, int]:
    return fault.line, fault.column


def scan(text: str, wanted: Iterable[str] = ()) -> Scan:
    """One pass over `text`: its syntax faults, duplicate keys, and the places of the `wanted` pointers and ancestors."""
    scanner = _Scanner(text, _trie(wanted))
    try:
        scanner.run()
    except ScheduleError as fault:
        scanner.faults.append(_conflict(text, fault) or fault)
    return Scan(scanner.faults, scanner.places)


def _conflict(text: str, fault: ScheduleError) -> ScheduleError | None:
    """What to say instead where the syntax breaks at a conflict marker that git has left."""
    marker = _MARKER.match(text.split("\n", fault.line)[fault.line - 1]) if fault.code == "R002" else None
    if marker is None:
        return None
    total = len(_CONFLICTS.findall(text))
    more = f" ({total} conflicts in the file)" if total > 1 else ""
    message = f"a conflict of a git merge is not resolved: {marker[1]} at line {fault.line}{more}"
    hint = "choose a side of each conflict, then `remate fmt --figures` computes the figures anew"
    return ScheduleError(fault.code, message, fault.where, hint, fault.line, 1)


def _trie(pointers: Iterable[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for wanted in pointers:
        node = root
        for part in wanted.split("/")[1:]:
            node = node.setdefault(part, {})
    return root


class _Level:
    """An open object or array. `keys` is None for an array; `part` is the key or index of the current item."""

    __slots__ = ("count", "keys", "part", "wanted")

    def __init__(self, keys: set[str] | None, wanted: dict[str, Any] | None) -> None:
        self.keys, self.wanted = keys, wanted
        self.part: str = ""
        self.count = 0


class _Scanner:
    def __init__(self, text: str, wanted: dict[str, Any]) -> None:
        self.text, self.at = text, 0
        self.root: dict[str, Any] | None = wanted
        self.levels: list[_Level] = []
        self.faults: list[ScheduleError] = []
        self.places: dict[str, InstanceSpan] = {}

    def run(self) -> None:
        self._space()
        opened = self._value(self.root, self.at)
        while opened or self.levels:
            opened = self._item(first=opened)
        if self.at < len(self.text):
            raise self._fault("R002", f"text after the end of the schedule: {self._seen()}", "delete it")

    def _item(self, first: bool) -> bool:
        """Read up to and including the next item of the open level, or its end. True if that opened a level."""
        level = self.levels[-1]
        closing = "]" if level.keys is None else "}"
        if self._peek() == closing:
            self._close()
            return False
        if not first:
            if self._peek() != ",":
                raise self._fault("R002", f"expected ',' or '{closing}', found {self._seen()}")
            self.at += 1
            self._space()
            if self._peek() == closing:
                raise self._fault("R002", f"a comma before '{closing}'", "delete the comma")
        key = self.at
        if level.keys is not None:
            self._key(level, level.keys)
        else:
            level.part = str(level.count)
            level.count += 1
        return self._value(None if level.wanted is None else level.wanted.get(escape(level.part)), key)

    def _key(self, level: _Level, keys: set[str]) -> None:
        start = self.at
        if self._peek() != '"':
            raise self._fault("R002", f"expected a key in double quotes, found {self._seen()}")
        level.part = self._string()
        if level.part in keys and len(self.faults) < MAX_FAULTS:
            self.faults.append(self._fault("R003", f"the key {level.part[:80]!r} twice", "keep one of the two", start))
        keys.add(level.part)
        self._space()
        if self._peek() != ":":
            raise self._fault("R002", f"expected ':' after the key, found {self._seen()}")
        self.at += 1
        self._space()

    def _value(self, wanted: dict[str, Any] | None, key: int) -> bool:
        """Read a value, or only its opening bracket (then True)."""
        if wanted is not None:
            self.places[self._pointer()] = InstanceSpan(
                self.at, key if self.levels and self.levels[-1].keys is not None else self.at
            )
        char = self._peek()
        if char in ("{", "["):
            if len(self.levels) == MAX_DEPTH:
                raise self._fault("R071", f"arrays and objects nested more than {MAX_DEPTH} deep")
            self.levels.append(_Level(set() if char == "{" else None, wanted))
            self.at += 1
            self._space()
            return True
        if char == '"':
            self._string()
        else:
            self._scalar()
        self._space()
        return False

    def _close(self) -> None:
        self.levels.pop()
        self.at += 1
        self._space()

    def _string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self._fault(
                "R002",
                "a text that does not end on its line, or has an invalid escape",
                'escape as \\n, \\" or \\u0041',
            )
        inner = found[1]
        if "\\" in inner:
            inner = json.loads(found[0])
            if not inner.isascii() and any("\ud800" <= char <= "\udfff" for char in inner):
                raise self._fault("R002", "a \\u escape of half a character", "write both surrogates, or the character")
        self.at = found.end()
        return inner

    def _scalar(self) -> None:
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            return self._word()
        if len(number[0]) > MAX_DIGITS:
            raise self._fault("R013", f"a number of more than {MAX_DIGITS} characters")
        self.at = number.end()
        if self.at < len(self.text) and (self.text[self.at].isalnum() or self.text[self.at] == "."):
            raise self._fault("R002", f"a number followed by {self._seen()}")

    def _word(self) -> None:
        word = _WORD.match(self.text, self.at)
        found = "the end of the file" if word is None else word[0]
        if found in ("true", "false", "null"):
            self.at += len(found)
            return
        hint = ""
        if found in ("NaN", "Infinity", "nan", "inf") or self.text.startswith("-I", self.at):
            hint = 'write {"float": "nan"}, {"float": "inf"} or {"float": "-inf"}'
        if found in ("True", "False", "None"):
            hint = "JSON writes true, false and null"
        raise self._fault("R002", f"expected a value, found {self._seen()}", hint)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _seen(self) -> str:
        word = _WORD.match(self.text, self.at)
        return "the end of the file" if word is None else repr(word[0][:40])

    def _pointer(self) -> str:
        return pointer(level.part for level in self.levels)

    def _fault(self, code: str, message: str, hint: str = "", offset: int | None = None) -> ScheduleError:
        line, column = line_column(self.text, self.at if offset is None else offset)
        return ScheduleError(code, message, self._pointer(), hint, line, column)
