"""Writes the output files of commands: `-` is standard output, other kinds of files are not overwritten."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from remate_runtime.support.files import advice, check_writable, write_atomically
from remate_runtime.support.plain_text import plain_lines

from .streams import Stream
from .usage import UsageError

STDOUT = "-"
_NARROWEST = 30  # columns
_COMMANDS = ("next: ", "hint: remate")
_HEAD = 1 << 16  # bytes of a file that are read to recognize it


class FileKind(NamedTuple):
    """A kind of file. start: regular expression that matches its first bytes."""

    name: str
    start: str


SCHEDULE = FileKind("a schedule", r'\s*\{.*"format"\s*:\s*"remate\.schedule"')
PAGE = FileKind("a page of remate", r'<!doctype html>.*<meta name="generator" content="remate ')
PLOT = FileKind("a plot of remate", r"<\?xml [^>]*>\s*<!-- drawn by remate -->")
TRACE = FileKind("a trace of remate", r'\{"displayTimeUnit":"ns","otherData":\{"producer":"remate"')
SNAPSHOT = FileKind("a snapshot of remate", r"\x80.{0,40}producer.{0,8}remate")
MEMORY_TRACE = FileKind("a memory trace of remate", r'\s*\{\s*"format"\s*:\s*"remate\.memory-trace"')
SUMMARY = FileKind("a summary of remate frontier", r'\s*\{\s*"format"\s*:\s*"remate\.frontier"')
INSTANCE = FileKind("an instance", r'\s*\{\s*"format"\s*:\s*"remate\.instance"')
RESULT = FileKind("a result of remate solve", r'\s*\{\s*"format"\s*:\s*"remate\.result"')
TABLE = FileKind("a table of remate frontier", r"budget +peak +overhead ")


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="overwrite a file of another kind")


def check_output(path: str, kind: FileKind, force: bool) -> None:
    """Check before any work that `path` is writable and holds no file of another kind. Raises UsageError, OSError."""
    if path == STDOUT:
        if sys.stdout is None:
            raise UsageError("standard output is closed\n  hint: name a file instead of -")
        return
    if not force and Path(path).is_file() and not _is(path, kind):
        hint = "name another file, or add --force to overwrite it"
        raise UsageError(f"{path} exists and is not {kind.name}\n  hint: {hint}")
    check_writable(path)


def _is(path: str, kind: FileKind) -> bool:
    """Whether a file is of this kind. An empty file is of every kind."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:  # unreadable, so its kind is unknown
        return False
    return not head or re.match(kind.start.encode(), head, re.DOTALL) is not None


def write_output(path: str, data: bytes, *, rescue: bool = False) -> None:
    """Write the result of a command.

    Args:
        path: The file, or `-` for standard output.
        data: Its content.
        rescue: If `path` is no longer writable, save a copy in the folder for temporary files and name it in the error.

    Raises:
        OSError: The file cannot be written.
    """
    if path != STDOUT:
        try:
            write_atomically(path, data)
        except OSError as error:
            if rescue:
                _rescue(path, data, error)
            raise
    else:
        Stream(sys.stdout, "standard output").write_data(data)


def _rescue(path: str, data: bytes, error: OSError) -> None:
    try:
        copy = Path(tempfile.mkdtemp(prefix="remate-")) / Path(path).name
        write_atomically(copy, data)
    except OSError:
        return
    hint = f"{advice(error)}; the result is saved as {copy}"
    raise UsageError(f"{path}: {error.strerror}\n  hint: {hint}") from error


def say(text: str, *outputs: str | None) -> None:
    """Print a text for people, without control characters or workflow commands.

    Args:
        text: The text.
        *outputs: Files that the command writes. If one is `-`, the text goes to standard error.
    """
    stream = sys.stderr if STDOUT in outputs else sys.stdout
    print(wrapped(plain_lines(text), stream), file=stream)


def say_aside(text: str) -> None:
    """Print to standard error: warnings, findings, hints."""
    print(wrapped(plain_lines(text), sys.stderr), file=sys.stderr)


def wrapped(text: str, stream: Any) -> str:
    """Wrap sentences to the width of the terminal. Rows of tables and commands to copy stay as they are."""
    if stream is None or not stream.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        if len(line) <= width or "  " in line.strip() or line.startswith(_COMMANDS):
            lines.append(line)
        else:
            options: Any = {"break_long_words": False, "break_on_hyphens": False}
            lines += textwrap.wrap(line, width, subsequent_indent=indent + "  ", **options)
    return "\n".join(lines)


def written(path: str, more: str = "") -> str:
    """`wrote s.json, 3.1 KiB`, for `say`."""
    return f"wrote {'to standard output' if path == STDOUT else path}{more}"
