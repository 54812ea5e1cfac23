"""Where things stand in a JSON text: line and column of JSON pointers, duplicate keys, syntax faults.

Used only when something is wrong, or to point at it: the fast path never scans. One pass over the bytes; memory bounded
by the nesting, the keys of the objects that are open and what is requested. Needs no torch.
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
_POINTS_AT_KEY = frozenset({"R003", "R010"})  # faults of a key rather than of its value
_WITH_RUNS = ("/model/parameters/", "/model/buffers/")  # maps in which entries are written by runs
_SEEN = 64  # bytes looked at to say what was found


class ValuePosition(msgspec.Struct, frozen=True):
    """Offsets in the bytes of a value and of its key (the value's own where it has none)."""

    value: int
    key: int


def pointer(parts: Iterable[str | int]) -> str:
    """JSON pointer of a path: `("a/b", 3)` -> `/a~1b/3`."""
    return "".join(f"/{escape(str(part))}" for part in parts)


def line_column(data: bytes, offset: int) -> tuple[int, int]:
    """1-based line and column (in characters) of an offset in UTF-8."""
    line = data.count(b"\n", 0, offset) + 1
    return line, _column(data, offset)


def _column(data: bytes, offset: int) -> int:
    return len(data[data.rfind(b"\n", 0, offset) + 1 : offset].decode(errors="replace")) + 1


def locate(text: bytes | str, faults: Sequence[ScheduleError]) -> list[ScheduleError]:
    """The same faults with line and column, in the order of the text.

    A pointer to what is not in the text takes the place of its nearest ancestor that is.
    """
    todo = [fault for fault in faults if not fault.line]
    if not todo:
        return sorted(faults, key=_place)
    data = text.encode() if isinstance(text, str) else text
    todo = _written(data, todo)
    known = places(data, [fault.where for fault in todo])
    offsets = [_offset(fault, known) for fault in todo]
    found = _lines_columns(data, offsets)
    placed = [fault for fault in faults if fault.line]
    for fault, offset in zip(todo, offsets, strict=True):
        placed.append(ScheduleError(fault.code, fault.message, fault.where, fault.hint, *found[offset]))
    return sorted(placed, key=_place)


class _Signature(msgspec.Struct):
    parameters: Any = None
    buffers: Any = None


class _File(msgspec.Struct):
    model: _Signature


def _written(data: bytes, faults: list[ScheduleError]) -> list[ScheduleError]:
    """The same faults with the pointers of what is in the text: entries that runs stand for (see `name_runs`) are
    written once, and so are their faults."""
    if not any(fault.where.startswith(_WITH_RUNS) for fault in faults):
        return faults
    with suppress(msgspec.MsgspecError, RecursionError):
        model = msgspec.json.decode(data, type=_File).model
        made: dict[tuple[str, ...], ScheduleError] = {}
        for fault in faults:
            found = _with_pointer(fault, model)
            made.setdefault((fault.code, found.where, "" if found is not fault else fault.message), found)
        return list(made.values())
    return faults


def _with_pointer(fault: ScheduleError, model: _Signature) -> ScheduleError:
    start = next((start for start in _WITH_RUNS if fault.where.startswith(start)), "")
    name = unescape(fault.where[len(start) :])
    found = start and written_at(getattr(model, start.split("/")[2]), name)
    if not found or start[:-1] + found == fault.where:
        return fault
    return ScheduleError(fault.code, fault.message, start[:-1] + found, fault.hint)


def _offset(fault: ScheduleError, known: dict[str, ValuePosition]) -> int:
    where = fault.where
    while where not in known and where:
        where = where.rpartition("/")[0]
    place = known.get(where, ValuePosition(0, 0))
    return place.key if fault.code in _POINTS_AT_KEY else place.value


def _lines_columns(data: bytes, offsets: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Line and column of each offset, in one pass over the text and over each line."""
    found: dict[int, tuple[int, int]] = {}
    line, column, at = 1, 1, 0
    for offset in sorted(set(offsets)):
        breaks = data.count(b"\n", at, offset)
        if breaks:
            line, column = line + breaks, _column(data, offset)
        else:
            column += len(data[at:offset].decode(errors="replace"))
        at = offset
        found[offset] = line, column
    return found


def _place(fault: ScheduleError) -> tuple[int, int]:
    return fault.line, fault.column


def scan(data: bytes) -> list[ScheduleError]:
    """The faults of a text: of its syntax, nesting and numbers (the pass ends there), and keys that stand twice."""
    scanner = _Scanner(data)
    try:
        scanner.run({})
    except ScheduleError as fault:
        scanner.faults.append(_conflict(data, scanner.at, fault) or fault)
    return scanner.faults


def places(data: bytes, wanted: Iterable[str]) -> dict[str, ValuePosition]:
    """Where the wanted pointers and their ancestors stand, as far as the text is JSON. Of a key that stands twice the
    last one counts, as for every parser."""
    scanner = _Scanner(data, keys_differ=True)
    with suppress(ScheduleError):
        scanner.run(_trie(wanted))
    return scanner.places


def text_at(data: bytes, offset: int) -> str | None:
    """The text that is written at an offset of JSON; None if there is another value."""
    found = _STRING.match(data, offset)
    return json.loads(found[0].decode(errors="replace")) if found else None


def _conflict(data: bytes, at: int, fault: ScheduleError) -> ScheduleError | None:
    """What to say instead where the syntax breaks at a conflict marker that git has left, or at a comment."""
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
    """An open object or array. keys: None for an array. key: of the current entry. count: items of an array up to and
    with the current one, without those in `passed`, runs of the text that nobody has counted. stops: the wanted indices
    that are still to come, the next one last."""

    __slots__ = ("count", "key", "keys", "passed", "stops", "wanted")

    def __init__(self, keys: set[str] | None, wanted: dict[str, Any] | None) -> None:
        self.keys, self.wanted = keys, wanted
        self.key = ""
        self.count = 0
        self.passed: list[tuple[int, int]] = []
        indices = (int(part) for part in wanted or () if part.isdecimal() and len(part) < 10)
        self.stops = sorted(indices, reverse=True) if keys is None else []

    def part(self, data: bytes) -> str:
        """The key or index of the current item."""
        if self.keys is not None:
            return self.key
        passed = sum(1 for start, end in self.passed for _ in patterns().item.finditer(data, start, end))
        return str(max(0, self.count + passed - 1)) if self.count + passed else ""


class _Scanner:
    """keys_differ: nobody asks whether a key stands twice. What is flat, correct and not wanted is passed over many
    items at a time: seven times as fast."""

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
        """Read up to and including the next item of the open level, or its end. True if that opened a level."""
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
            pass  # what lies inside may be too deep
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
        """Past the next items of an array, as far as they are correct, not wanted, and not the last."""
        while level.stops and level.stops[-1] < level.count:
            level.stops.pop()
        if not level.stops:
            level.wanted = None
            while (run := self.known.items.match(self.data, self.at)) is not None and self._sound(run[0]):
                level.passed.append(run.span())
                self.at = run.end()
            return
        while level.count < level.stops[-1]:
            found = self.known.item.match(self.data, self.at)
            if found is None or not self._sound(found[0]):
                return
            self.at = found.end()
            level.count += 1

    def _sound(self, items: bytes) -> bool:
        """Whether no object among these items has a key twice."""
        return self.keys_differ or b":" not in items or keys_differ(b"[" + items + b"0]")

    def _pass_entries(self, level: _Level, keys: set[str]) -> None:
        """Past the next entries of an object, in the same way."""
        if self.keys_differ and not level.wanted:
            while (run := self.known.entries.match(self.data, self.at)) is not None:
                self.at = run.end()
            return
        while (found := self.known.entry.match(self.data, self.at)) is not None:
            key = found[1].decode(errors="replace")
            if (level.wanted and escape(key) in level.wanted) or not self._sound(found[2]):
                return
            if not self.keys_differ:
                if key in keys:
                    return
                keys.add(key)
            level.key = key
            self.at = found.end()

    def _key(self, level: _Level, keys: set[str]) -> None:
        start = self.at
        if self._peek() != b'"':
            raise self._fault("R002", f"expected a key in double quotes, found {self._seen()}")
        level.key = key = self._string()
        if key in keys and not self.keys_differ:
            fault = self._fault("R003", f"the key {key[:80]!r} twice", "keep one of the two", start)
            if len(self.faults) >= MAX_FAULTS - 1:
                raise fault  # enough: the pass ends here
            self.faults.append(fault)
        keys.add(key)
        self._space()
        if self._peek() != b":":
            raise self._fault("R002", f"expected ':' after the key, found {self._seen()}")
        self.at += 1
        self._space()

    def _value(self, wanted: dict[str, Any] | None, key: int) -> bool:
        """Read a value, or only its opening bracket (then True)."""
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
        found = _STRING.match(self.data, self.at)
        if found is None:
            raise self._fault(
                "R002",
                "a text that does not end on its line, or has an invalid escape",
                'escape as \\n, \\" or \\u0041',
            )
        inner = found[1]
        text = json.loads(found[0].decode(errors="replace")) if b"\\" in inner else inner.decode(errors="replace")
        if b"\\" in inner and not text.isascii() and _SURROGATE.search(text):
            raise self._fault("R002", "a \\u escape of half a character", "write both surrogates, or the character")
        self.at = found.end()
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
        found = self._character()
        if found in ("true", "false", "null"):
            self.at += len(found)
            return
        hint = ""
        if found in ("NaN", "Infinity", "nan", "inf") or self.data.startswith(b"-I", self.at):
            hint = 'write {"float": "nan"}, {"float": "inf"} or {"float": "-inf"}'
        if found in ("True", "False", "None"):
            hint = "JSON writes true, false and null"
        raise self._fault("R002", f"expected a value, found {self._seen()}", hint)

    def _peek(self) -> bytes:
        return self.data[self.at : self.at + 1]

    def _space(self) -> None:
        found = _SPACE.match(self.data, self.at)
        if found is not None:
            self.at = found.end()

    def _character(self) -> str:
        """The word or character that comes next; empty at the end."""
        word = _WORD.match(self.data[self.at : self.at + _SEEN].decode(errors="ignore"))
        return "" if word is None else word[0]

    def _seen(self) -> str:
        found = self._character()
        return repr(found[:40]) if found else "the end of the file"

    def _pointer(self) -> str:
        return pointer(level.part(self.data) for level in self.levels)

    def _fault(self, code: str, message: str, hint: str = "", offset: int | None = None) -> ScheduleError:
        line, column = line_column(self.data, self.at if offset is None else offset)
        return ScheduleError(code, message, self._pointer(), hint, line, column)
