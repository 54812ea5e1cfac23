"""Positions in a JSON text: line and column of JSON pointers, duplicate keys, syntax faults. Does not require torch.

Used only for faults, or to point at a place: the fast path never scans. It takes one pass over the bytes. Memory is
bounded by the nesting, the keys of open objects and the requested pointers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ..errors import ScheduleError
from .json_patterns import NESTING, keys_differ, patterns
from .limits import MAX_DEPTH, MAX_DIGITS, MAX_FAULTS
from .name_runs import written_at
from .signature import escape, unescape

_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'"([^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+)"')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_WORD = re.compile(r"[A-Za-z]+|.", re.DOTALL)
_MARKER = re.compile(rb"(<{7}|\|{7}|={7}|>{7})(?![<|=>])")
_CONFLICTS = re.compile(rb"^<{7}(?!<)", re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_POINTS_AT_KEY = frozenset({"R003", "R010"})  # these codes concern a key, not its value
_WITH_RUNS = ("/model/parameters/", "/model/buffers/")  # maps whose entries may be written by runs
_SEEN = 64  # bytes to show of unexpected text


class ValuePosition(msgspec.Struct, frozen=True):
    """Offsets in the bytes of a value and of its key (the value's own if there is no key)."""

    value: int
    key: int


def pointer(parts: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path: `("a/b", 3)` -> `/a~1b/3`."""
    return "".join(f"/{escape(str(part))}" for part in parts)


def line_column(data: bytes, offset: int) -> tuple[int, int]:
    """Return the 1-based line and column (in characters) of an offset in UTF-8."""
    line = data.count(b"\n", 0, offset) + 1
    return line, _column(data, offset)


def _column(data: bytes, offset: int) -> int:
    return len(data[data.rfind(b"\n", 0, offset) + 1 : offset].decode(errors="replace")) + 1


def locate(text: bytes | str, faults: Sequence[ScheduleError]) -> list[ScheduleError]:
    """Return the faults with line and column, in text order. A missing place becomes its nearest existing ancestor."""
    todo = [fault for fault in faults if not fault.line]
    if not todo:
        return sorted(faults, key=_place)
    data = text.encode() if isinstance(text, str) else text
    todo = _written(data, todo)
    known = places(data, [fault.where for fault in todo])
    offsets = [_offset(fault, known) for fault in todo]
    line_columns = _lines_columns(data, offsets)
    placed = [fault for fault in faults if fault.line]
    for fault, offset in zip(todo, offsets, strict=True):
        placed.append(ScheduleError(fault.code, fault.message, fault.where, fault.hint, *line_columns[offset]))
    return sorted(placed, key=_place)


class _Signature(msgspec.Struct):
    parameters: Any = None
    buffers: Any = None


class _File(msgspec.Struct):
    model: _Signature


def _written(data: bytes, faults: list[ScheduleError]) -> list[ScheduleError]:
    """Return the faults at their written places: entries of runs (see `name_runs`) and their faults appear once."""
    if not any(fault.where.startswith(_WITH_RUNS) for fault in faults):
        return faults
    with suppress(msgspec.MsgspecError, RecursionError):
        model = msgspec.json.decode(data, type=_File).model
        by_place: dict[tuple[str, ...], ScheduleError] = {}
        for fault in faults:
            pointed = _with_pointer(fault, model)
            by_place.setdefault((fault.code, pointed.where, "" if pointed is not fault else fault.message), pointed)
        return list(by_place.values())
    return faults


def _with_pointer(fault: ScheduleError, model: _Signature) -> ScheduleError:
    start = next((start for start in _WITH_RUNS if fault.where.startswith(start)), "")
    name = unescape(fault.where[len(start) :])
    below = start and written_at(getattr(model, start.split("/")[2]), name)
    if not below or start[:-1] + below == fault.where:
        return fault
    return ScheduleError(fault.code, fault.message, start[:-1] + below, fault.hint)


def _offset(fault: ScheduleError, known: dict[str, ValuePosition]) -> int:
    where = fault.where
    while where not in known and where:
        where = where.rpartition("/")[0]
    place = known.get(where, ValuePosition(0, 0))
    return place.key if fault.code in _POINTS_AT_KEY else place.value


def _lines_columns(data: bytes, offsets: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return line and column of each offset, in one pass over the text and over each line."""
    line_columns: dict[int, tuple[int, int]] = {}
    line, column, at = 1, 1, 0
    for offset in sorted(set(offsets)):
        breaks = data.count(b"\n", at, offset)
        if breaks:
            line, column = line + breaks, _column(data, offset)
        else:
            column += len(data[at:offset].decode(errors="replace"))
        at = offset
        line_columns[offset] = line, column
    return line_columns


def _place(fault: ScheduleError) -> tuple[int, int]:
    return fault.line, fault.column


def scan(data: bytes) -> list[ScheduleError]:
    """Return the faults of a text: duplicate keys, and the first fault of syntax, nesting or numbers."""
    scanner = _Scanner(data)
    try:
        scanner.run({})
    except ScheduleError as fault:
        scanner.faults.append(_conflict(data, scanner.at, fault) or fault)
    return scanner.faults


def places(data: bytes, wanted: Iterable[str]) -> dict[str, ValuePosition]:
    """Return the positions of the requested pointers and their ancestors. Of a duplicate key the last one counts."""
    scanner = _Scanner(data, keys_differ=True)
    with suppress(ScheduleError):
        scanner.run(_trie(wanted))
    return scanner.places


def text_at(data: bytes, offset: int) -> str | None:
    """Return the string at an offset of JSON; None for another value."""
    match = _STRING.match(data, offset)
    return json.loads(match[0].decode(errors="replace")) if match else None


def _conflict(data: bytes, at: int, fault: ScheduleError) -> ScheduleError | None:
    """Return a better fault for a conflict marker of git, or a comment."""
    marker = _MARKER.match(data, data.rfind(b"\n", 0, at) + 1) if fault.code == "R002" else None
    if marker is None:
        if fault.code != "R002" or not data.startswith((b"//", b"/*", b"#"), at):
            return None
        hint = "JSON has no comments: any object takes a text as its `note`, which every command keeps"
        return ScheduleError(fault.code, fault.message, fault.where, hint, fault.line, fault.column)
    total = sum(1 for _ in _CONFLICTS.finditer(data))
    more = f" ({total} conflicts in the file)" if total > 1 else ""
    message = f"a conflict of a git merge is not resolved: {marker[1].decode()} at line {fault.line}{more}"
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
    """An open object or array.

    Attributes:
        keys: None for an array.
        key: Key of the current entry.
        count: Number of items of an array up to the current one, without those in `passed`.
        passed: Runs of the text whose items have not been counted.
        stops: The requested indices that follow, the next one last.
    """

    __slots__ = ("count", "key", "keys", "passed", "stops", "wanted")

    def __init__(self, keys: set[str] | None, wanted: dict[str, Any] | None) -> None:
        self.keys, self.wanted = keys, wanted
        self.key = ""
        self.count = 0
        self.passed: list[tuple[int, int]] = []
        indices = (int(part) for part in wanted or () if part.isdecimal() and len(part) < 10)
        self.stops = sorted(indices, reverse=True) if keys is None else []

    def part(self, data: bytes) -> str:
        """Return the key or index of the current item."""
        if self.keys is not None:
            return self.key
        passed = sum(1 for start, end in self.passed for _ in patterns().item.finditer(data, start, end))
        return str(max(0, self.count + passed - 1)) if self.count + passed else ""


class _Scanner:
    """Scans a text. Correct flat items that are not requested are skipped. keys_differ: duplicate keys are no fault."""

    def __init__(self, data: bytes, keys_differ: bool = False) -> None:
        self.data, self.at = data, 0
        self.keys_differ = keys_differ
        self.known = patterns()
        self.levels: list[_Level] = []
        self.faults: list[ScheduleError] = []
        self.places: dict[str, ValuePosition] = {}

    def run(self, wanted: dict[str, Any]) -> None:
        self._space()
        opened = self._value(wanted, self.at)
        while opened or self.levels:
            opened = self._item(first=opened)
        if self.at < len(self.data):
            raise self._fault("R002", f"text after the end of the schedule: {self._seen()}", "delete it")

    def _item(self, first: bool) -> bool:
        """Read the next item of the open level, or its end. Return True if that opened a level."""
        level = self.levels[-1]
        closing = b"]" if level.keys is None else b"}"
        if self._peek() == closing:
            self._close()
            return False
        if not first:
            if self._peek() != b",":
                raise self._fault("R002", f"expected ',' or '{closing.decode()}', found {self._seen()}")
            self.at += 1
            self._space()
        if len(self.levels) + NESTING > MAX_DEPTH:
            pass  # its contents may be too deep
        elif level.keys is not None:
            self._pass_entries(level, level.keys)
        else:
            self._pass_items(level)
        if self._peek() == closing:
            raise self._fault("R002", f"a comma before '{closing.decode()}'", "delete the comma")
        key = self.at
        if level.keys is not None:
            self._key(level, level.keys)
        else:
            level.count += 1
        return self._value(level.wanted.get(escape(level.part(self.data))) if level.wanted else None, key)

    def _pass_items(self, level: _Level) -> None:
        """Skip the next items of an array that are correct, not requested, and not the last."""
        while level.stops and level.stops[-1] < level.count:
            level.stops.pop()
        if not level.stops:
            level.wanted = None
            while (run := self.known.items.match(self.data, self.at)) is not None and self._sound(run[0]):
                level.passed.append(run.span())
                self.at = run.end()
            return
        while level.count < level.stops[-1]:
            match = self.known.item.match(self.data, self.at)
            if match is None or not self._sound(match[0]):
                return
            self.at = match.end()
            level.count += 1

    def _sound(self, items: bytes) -> bool:
        """Return whether no object among these items has a key twice."""
        return self.keys_differ or b":" not in items or keys_differ(b"[" + items + b"0]")

    def _pass_entries(self, level: _Level, keys: set[str]) -> None:
        """Skip the next entries of an object in the same way."""
        if self.keys_differ and not level.wanted:
            while (run := self.known.entries.match(self.data, self.at)) is not None:
                self.at = run.end()
            return
        while (match := self.known.entry.match(self.data, self.at)) is not None:
            key = match[1].decode(errors="replace")
            if (level.wanted and escape(key) in level.wanted) or not self._sound(match[2]):
                return
            if not self.keys_differ:
                if key in keys:
                    return
                keys.add(key)
            level.key = key
            self.at = match.end()

    def _key(self, level: _Level, keys: set[str]) -> None:
        start = self.at
        if self._peek() != b'"':
            raise self._fault("R002", f"expected a key in double quotes, found {self._seen()}")
        level.key = key = self._string()
        if key in keys and not self.keys_differ:
            fault = self._fault("R003", f"the key {key[:80]!r} twice", "keep one of the two", start)
            if len(self.faults) >= MAX_FAULTS - 1:
                raise fault  # ends the pass
            self.faults.append(fault)
        keys.add(key)
        self._space()
        if self._peek() != b":":
            raise self._fault("R002", f"expected ':' after the key, found {self._seen()}")
        self.at += 1
        self._space()

    def _value(self, wanted: dict[str, Any] | None, key: int) -> bool:
        """Read a value, or only its opening bracket (then return True)."""
        if wanted is not None:
            self.places[self._pointer()] = ValuePosition(
                self.at, key if self.levels and self.levels[-1].keys is not None else self.at
            )
        char = self._peek()
        if char in (b"{", b"["):
            if len(self.levels) == MAX_DEPTH:
                raise self._fault("R071", f"arrays and objects nested more than {MAX_DEPTH} deep")
            self.levels.append(_Level(set() if char == b"{" else None, wanted))
            self.at += 1
            self._space()
            return True
        if char == b'"':
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
        match = _STRING.match(self.data, self.at)
        if match is None:
            raise self._fault(
                "R002",
                "a text that does not end on its line, or has an invalid escape",
                'escape as \\n, \\" or \\u0041',
            )
        content = match[1]
        text = json.loads(match[0].decode(errors="replace")) if b"\\" in content else content.decode(errors="replace")
        if b"\\" in content and not text.isascii() and _SURROGATE.search(text):
            raise self._fault("R002", "a \\u escape of half a character", "write both surrogates, or the character")
        self.at = match.end()
        return text

    def _scalar(self) -> None:
        number = _NUMBER.match(self.data, self.at)
        if number is None:
            return self._word()
        if number.end() - self.at > MAX_DIGITS:
            raise self._fault("R013", f"a number of more than {MAX_DIGITS} characters")
        self.at = number.end()
        after = self._character()
        if after.isalnum() or after == ".":
            raise self._fault("R002", f"a number followed by {self._seen()}")

    def _word(self) -> None:
        word = self._character()
        if word in ("true", "false", "null"):
            self.at += len(word)
            return
        hint = ""
        if word in ("NaN", "Infinity", "nan", "inf") or self.data.startswith(b"-I", self.at):
            hint = 'write {"float": "nan"}, {"float": "inf"} or {"float": "-inf"}'
        if word in ("True", "False", "None"):
            hint = "JSON writes true, false and null"
        raise self._fault("R002", f"expected a value, found {self._seen()}", hint)

    def _peek(self) -> bytes:
        return self.data[self.at : self.at + 1]

    def _space(self) -> None:
        match = _SPACE.match(self.data, self.at)
        if match is not None:
            self.at = match.end()

    def _character(self) -> str:
        """Return the next word or character; "" at the end."""
        word = _WORD.match(self.data[self.at : self.at + _SEEN].decode(errors="ignore"))
        return "" if word is None else word[0]

    def _seen(self) -> str:
        word = self._character()
        return repr(word[:40]) if word else "the end of the file"

    def _pointer(self) -> str:
        return pointer(level.part(self.data) for level in self.levels)

    def _fault(self, code: str, message: str, hint: str = "", offset: int | None = None) -> ScheduleError:
        line, column = line_column(self.data, self.at if offset is None else offset)
        return ScheduleError(code, message, self._pointer(), hint, line, column)
