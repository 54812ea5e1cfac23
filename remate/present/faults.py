"""Faults of a schedule file, in a compiler's style: as text, as JSON, and as GitHub annotations.

A fault has file:line:column, a code, its place (block, operation, plan), the source line, and a hint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from remate_runtime.errors import ScheduleError
from remate_runtime.format import CODES, places, text_at
from remate_runtime.support.plain_text import plain, plain_json

from .source_lines import Lines

FORMATS = ("text", "json", "github")
_WIDTH = 100  # characters of a source line around the fault
_KINDS = {
    "blocks": "block",
    "plans": "plan",
    "forward": "operation",
    "backward": "operation",
    "instances": "instance",
    "program": "instance",
    "constants": "constant",
}


class FaultReport(NamedTuple):
    """level: error | warning. codes: The meaning of each code. listed: The key of the list in JSON."""

    level: str
    codes: Mapping[str, str]
    listed: str


FAULTS = FaultReport("error", CODES, "faults")


def render(form: str, path: str, data: bytes, faults: Sequence[ScheduleError], kind: FaultReport = FAULTS) -> str:
    """Format faults.

    Args:
        form: A format of FORMATS.
        path: The file's path.
        data: The file's bytes, for source lines.
        faults: The faults.
        kind: Level and codes.

    Returns:
        The text, without a final line break.
    """
    named = list(zip(faults, subjects(data, [fault.where for fault in faults]), strict=True))
    if form == "json":
        report = {"file": path, kind.listed: [_record(fault, subject, kind) for fault, subject in named]}
        return plain_json(json.dumps(report, indent=2))
    if form == "github":
        return "\n".join(_annotation(path, fault, subject, kind) for fault, subject in named)
    lines = Lines(data)
    return "\n".join(_passage(path, fault, subject, lines, kind) for fault, subject in named)


def subjects(data: bytes, pointers: Sequence[str]) -> list[str]:
    """Return the place of each pointer: `block GPT2Block, operation mlp.act`.

    Args:
        data: The file's bytes. They may be invalid JSON.
        pointers: JSON pointers.
    """
    if not any(pointers):
        return [""] * len(pointers)
    ids_at = places(data, {f"{around}/id" for pointer in pointers for around in _around(pointer)})
    ids = {where[:-3]: text_at(data, place.value) for where, place in ids_at.items() if where.endswith("/id")}
    return [_subject(ids, pointer) for pointer in pointers]


def _around(pointer: str) -> list[str]:
    """Return a pointer and its ancestors, the outermost first."""
    parts = pointer.split("/")
    return ["/".join(parts[: end + 1]) for end in range(1, len(parts))]


def _subject(ids: Mapping[str, str | None], pointer: str) -> str:
    parts: list[str] = []
    kind = ""
    for around in _around(pointer):
        name = around.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        named = ids.get(around)
        if kind in ("block", "plan", "constant"):
            parts.append(f"{kind} {name}")
        elif kind and named is not None:
            parts.append(f"{kind} {named}")
        kind = _KINDS.get(name, "") if not kind else ""
    return ", ".join(part[:160] for part in parts)


def _record(fault: ScheduleError, subject: str, kind: FaultReport) -> dict[str, Any]:
    return {
        "code": fault.code,
        "meaning": kind.codes.get(fault.code, ""),
        "message": fault.message,
        "hint": fault.hint,
        "pointer": fault.where,
        "in": subject,
        "line": fault.line,
        "column": fault.column,
    }


def _annotation(path: str, fault: ScheduleError, subject: str, kind: FaultReport) -> str:
    """Return a workflow command of GitHub Actions, which shows the fault beside its line in a pull request."""
    place = f",line={fault.line},col={fault.column}" if fault.line else ""
    title = f"{fault.code}: {kind.codes.get(fault.code, 'fault')}"
    message = plain(fault.message) + (f" ({plain(subject)})" if subject else "")
    message += f"\nhint: {plain(fault.hint)}" if fault.hint else ""
    return f"::{kind.level} file={_property(path)}{place},title={_property(title)}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return "%0A".join(plain(line).replace("%", "%25") for line in text.split("\n"))


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _passage(path: str, fault: ScheduleError, subject: str, lines: Lines, kind: FaultReport) -> str:
    place = f":{fault.line}:{fault.column}" if fault.line else ""
    within = f" (in {subject})" if subject else ""
    at = f" at {_clipped(fault.where)}" if fault.where else ""
    shown = [plain(f"{path}{place}: ") + plain(f"{kind.level}[{fault.code}]{at}: {fault.message}{within}")]
    line = lines.line(fault.line)
    if line is not None:
        shown += _excerpt(line, fault.line, fault.column)
    if fault.hint:
        shown.append("  hint: " + plain(fault.hint))
    return "\n".join(shown)


def _clipped(pointer: str) -> str:
    return pointer if len(pointer) <= _WIDTH else f"{pointer[:60]}…{pointer[-30:]}"


def _excerpt(line: str, number: int, column: int) -> list[str]:
    """Return _WIDTH characters of the line around the column, and a caret below."""
    start = max(0, min(column - 1 - _WIDTH // 2, len(line) - _WIDTH))
    start = start if start > 0 else len(line[:column]) - len(line[:column].lstrip(" "))
    cut = line[start : start + _WIDTH]
    before = "…" if start > 0 and not line[max(0, start - 1000) : start].isspace() else ""
    after = "…" if start + _WIDTH < len(line) else ""
    printable = plain(cut.rstrip("\r"))
    caret = " " * (len(before) + len(plain(cut[: column - 1 - start]))) + "^"
    if not printable.strip():
        return []
    return [f"  {number:>5} | {before}{printable}{after}", f"        | {caret}"]
