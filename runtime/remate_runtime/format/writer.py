"""Writes a Schedule as canonical text, and saves it atomically. Does not require torch.

Canonical text has fields in the order of the structs, no defaults, one operation, recompute, instance or map entry per
line, two spaces per level, ASCII, LF, and a final newline. Maps keep the order of their entries. An entry that does not
fit into WIDTH columns continues on lines indented by two more spaces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from ..errors import ScheduleError
from ..support.files import advice, write_atomically
from .json_values import is_array, is_object
from .name_runs import folded
from .schedule import Block, Schedule

WIDTH = 160  # columns of a line, unless one text or number is longer
_to_json = json.JSONEncoder(allow_nan=False).encode


def encode(schedule: Schedule) -> bytes:
    """Return the canonical text of a schedule. `decode(encode(s)) == s`, except that arrays in arguments become lists.

    Raises:
        ScheduleError: R021 for an argument without JSON form (a tensor, or nan or an infinity as a bare float).
    """
    try:
        return ("\n".join(_schedule(schedule)) + "\n").encode("ascii")
    except (TypeError, ValueError) as error:
        hint = 'write infinities and nan as {"float": "inf"}; arguments are JSON values and %references'
        raise ScheduleError("R021", f"a value of the schedule has no JSON form: {error}", hint=hint) from error


def save(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write the canonical text to `path`, by a temporary file in the same folder, fsync and rename.

    A concurrent reader sees the old file or the new one. If anything fails, `path` stays as it was.

    Raises:
        ScheduleError: R000 if the file cannot be written; any other code if `load` would refuse the text.
    """
    text = checked_text(schedule)
    try:
        write_atomically(path, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScheduleError("R000", f"{os.fspath(path)} cannot be written: {reason}", hint=advice(error)) from error


def checked_text(schedule: Schedule) -> bytes:
    """Return the canonical text of a schedule. Raises ScheduleError with the code that `load` would raise."""
    from .reader import decode

    text = encode(schedule)
    decode(text)
    return text


def _schedule(schedule: Schedule) -> Iterable[str]:
    fields = _fields(schedule)
    lines: dict[str, list[str]] = {}
    for name, value in fields.items():
        if name == "model":
            lines[name] = _object({k: _model_field(k, v, 4) for k, v in _fields(value).items()}, 2)
        elif name == "solve":
            solve = {k: _array(v, 4) if k == "parts" else [_line(v)] for k, v in _fields(value).items()}
            lines[name] = _object(solve, 2)
        elif name == "digest":
            lines[name] = _object({k: _entries(v, 4) for k, v in _fields(value).items()}, 2)
        elif name == "blocks":
            lines[name] = _object({k: _block(v, 4) for k, v in value.items()}, 2)
        elif name in ("program", "statements"):
            lines[name] = _array(value, 2)
        elif name in ("costs", "tile_workspaces", "lanes"):
            lines[name] = _entries(value, 2)
        else:
            lines[name] = [_line(value)]
    return _object(lines, 0)


def _model_field(name: str, value: Any, indent: int) -> list[str]:
    if name in ("inputs", "outputs"):
        return _tree(value, indent, indent + len(name) + 5)
    return _entries(folded(value) if name in ("parameters", "buffers") else value, indent)


def _block(block: Block, indent: int) -> list[str]:
    lines: dict[str, list[str]] = {}
    for name, value in _fields(block).items():
        if name == "plans":
            lines[name] = _object({k: _array(v, indent + 4) for k, v in value.items()}, indent + 2)
        else:
            lines[name] = _entries(value, indent + 2)
    return _object(lines, indent)


def _entries(value: object, indent: int) -> list[str]:
    """Return the lines of a map or array with one entry per line; any other value on one line."""
    if is_object(value):
        return _object({k: _entry(v, indent + 2, k) for k, v in value.items()}, indent)
    if is_array(value):
        return _array(value, indent)
    return [_line(value)]


def _tree(value: object, indent: int, column: int) -> list[str]:
    """Return a nested value on one line if it fits from `column` on, otherwise one entry per line, recursively."""
    line = _line(value)
    if column + len(line) < WIDTH or not value or not (is_object(value) or is_array(value)):
        return [line]
    inner = indent + 2
    if is_object(value):
        return _object({k: _tree(v, inner, inner + len(_to_json(k)) + 2) for k, v in value.items()}, indent)
    return _join("[", [_tree(v, inner, inner) for v in value], "]", indent)


def _entry(value: object, indent: int, name: str = "") -> list[str]:
    """Return the lines of an entry of a map (under `name`) or of an array. The first line has no indent."""
    plain = _plain(value)
    return _fill(plain, indent, indent + (len(_to_json(name)) + 2 if name else 0), 1)


def _fill(value: object, indent: int, column: int, after: int) -> list[str]:
    """Fill lines with items. An item that fits on no line is filled on lines of its own.

    column: start of the first line. after: characters that must fit after the last line.
    """
    whole = _to_json(value)
    if column + len(whole) + after <= WIDTH or not value or not (is_object(value) or is_array(value)):
        return [whole]
    items: list[tuple[str | None, Any]] = list(value.items()) if is_object(value) else [(None, item) for item in value]
    lines: list[str] = []
    line, column = "{" if isinstance(value, dict) else "[", column + 1
    for at, (key, item) in enumerate(items):
        name, reserved = "" if key is None else f"{_to_json(key)}: ", 1 if at < len(items) - 1 else 1 + after
        first = at == 0
        rendered = [name + _to_json(item)]
        if column + (0 if first else 1) + len(rendered[0]) + reserved > WIDTH:
            if not first:
                lines.append(line)
                line, column, first = " " * (indent + 2), indent + 2, True
            rendered = _fill(item, indent + 2, column + len(name), reserved)
            rendered[0] = name + rendered[0]
        line += ("" if first else " ") + rendered[0]
        if len(rendered) > 1:
            lines += [line, *rendered[1:-1]]
            line = rendered[-1]
        line += "," if at < len(items) - 1 else ""
        column = len(line) if lines else column + (0 if first else 1) + len(rendered[0]) + 1
    return [*lines, line + ("}" if isinstance(value, dict) else "]")]


def _object(entries: dict[str, list[str]], indent: int) -> list[str]:
    """Join an object. entries: the lines of each value, the first without its indent."""
    keyed = [[f"{_to_json(name)}: {lines[0]}", *lines[1:]] for name, lines in entries.items()]
    return _join("{", keyed, "}", indent)


def _array(items: Iterable[object], indent: int) -> list[str]:
    return _join("[", [_entry(item, indent + 2) for item in items], "]", indent)


def _join(opening: str, items: list[list[str]], closing: str, indent: int) -> list[str]:
    if not items:
        return [opening + closing]
    pad = " " * (indent + 2)
    out = [opening]
    for item in items:
        out.append(pad + item[0])
        out.extend(item[1:])
        out[-1] += ","
    out[-1] = out[-1][:-1]
    out.append(" " * indent + closing)
    return out


def _line(value: object) -> str:
    return _to_json(_plain(value))


def _plain(value: object) -> Any:
    """Convert structs for JSON's encoder; they contain no other structs."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(field) for name, field in _fields(value).items()}
    return value


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that differ from their defaults, by their names in the file."""
    out: dict[str, Any] = {}
    for attribute, name, default in _layout(type(value)):
        field = getattr(value, attribute)
        if field is not default and not (field == default and type(field) is type(default)):
            out[name] = field
    return out


@cache
def _layout(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return (attribute, name in the file, default) for every field of a struct."""
    layout: list[tuple[str, str, Any]] = []
    for field in msgspec.structs.fields(kind):
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        layout.append((field.name, field.encode_name, default))
    return tuple(layout)
