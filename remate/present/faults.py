"""Faults of a schedule file as compilers print them: for people, for programs, for GitHub's annotations.

A fault is shown with file:line:column, code, what it is in (block, operation, plan), the line itself, and a hint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from remate_runtime.errors import ScheduleError
from remate_runtime.format import CODES

FORMATS = ("text", "json", "github")
_WIDTH = 100  # characters of a line that are shown, around the fault
_KINDS = {
    "blocks": "block",
    "plans": "plan",
    "forward": "operation",
    "backward": "operation",
    "instances": "instance",
    "program": "instance",
    "constants": "constant",
}


class Kind(NamedTuple):
    """level: error | warning. codes: what each code means. listed: the key of the list in JSON."""

    level: str
    codes: Mapping[str, str]
    listed: str


FAULTS = Kind("error", CODES, "faults")


def render(form: str, path: str, data: bytes, faults: Sequence[ScheduleError], kind: Kind = FAULTS) -> str:
    """All faults in one of FORMATS. data: the file's bytes, for the lines shown. Ends without a line break."""
    text = data.decode(errors="replace")
    named = list(zip(faults, subjects(text, [fault.where for fault in faults]), strict=True))
    if form == "json":
        return json.dumps(
            {"file": path, kind.listed: [_record(fault, subject, kind) for fault, subject in named]}, indent=2
        )
    if form == "github":
        return "\n".join(_annotation(path, fault, subject, kind) for fault, subject in named)
    lines = text.split("\n")
    return "\n".join(_passage(path, fault, subject, lines, kind) for fault, subject in named)


def subjects(text: str, pointers: Sequence[str]) -> list[str]:
    """What each pointer is in: `block GPT2Block, operation mlp.act`. Empty where the text is no JSON."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return [""] * len(pointers)
    return [_subject(tree, pointer) for pointer in pointers]


def _subject(tree: Any, pointer: str) -> str:
    found: list[str] = []
    kind = ""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        tree = _child(tree, name)
        named = tree.get("id") if isinstance(tree, dict) else None
        if kind in ("block", "plan", "constant"):
            found.append(f"{kind} {name}")
        elif kind and isinstance(named, str):
            found.append(f"{kind} {named}")
        kind = _KINDS.get(name, "") if not kind else ""
    return ", ".join(part[:160] for part in found)


def _child(tree: Any, name: str) -> Any:
    if isinstance(tree, dict):
        return tree.get(name)
    if isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
        return tree[int(name)]
    return None


def _record(fault: ScheduleError, subject: str, kind: Kind) -> dict[str, Any]:
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


def _annotation(path: str, fault: ScheduleError, subject: str, kind: Kind) -> str:
    """A workflow command of GitHub Actions: the fault appears beside the line in a pull request."""
    place = f",line={fault.line},col={fault.column}" if fault.line else ""
    title = f"{fault.code}: {kind.codes.get(fault.code, 'fault')}"
    message = fault.message + (f" ({subject})" if subject else "") + (f"\nhint: {fault.hint}" if fault.hint else "")
    return f"::{kind.level} file={_property(path)}{place},title={_property(title)}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _passage(path: str, fault: ScheduleError, subject: str, lines: list[str], kind: Kind) -> str:
    place = f":{fault.line}:{fault.column}" if fault.line else ""
    within = f" (in {subject})" if subject else ""
    at = f" at {_clipped(fault.where)}" if fault.where else ""
    shown = [f"{path}{place}: " + _printable(f"{kind.level}[{fault.code}]{at}: {fault.message}{within}")]
    if 0 < fault.line <= len(lines):
        shown += _excerpt(lines[fault.line - 1], fault.line, fault.column)
    if fault.hint:
        shown.append("  hint: " + _printable(fault.hint))
    return "\n".join(shown)


def _printable(text: str) -> str:
    """Without control and direction characters, which could make a terminal show something else."""
    return "".join(char if char.isprintable() else "·" for char in text)


def _clipped(pointer: str) -> str:
    return pointer if len(pointer) <= _WIDTH else f"{pointer[:60]}…{pointer[-30:]}"


def _excerpt(line: str, number: int, column: int) -> list[str]:
    """The line, cut to _WIDTH characters around the column, and a caret below."""
    start = max(0, min(column - 1 - _WIDTH // 2, len(line) - _WIDTH))
    start = start if start > 0 else len(line) - len(line.lstrip(" "))
    cut = line[start : start + _WIDTH]
    before = "…" if start > 0 and line[:start].strip() else ""
    after = "…" if start + _WIDTH < len(line) else ""
    printable = _printable(cut.rstrip("\r"))
    caret = " " * (len(before) + column - 1 - start) + "^"
    if not printable.strip():
        return []
    return [f"  {number:>5} | {before}{printable}{after}", f"        | {caret}"]
