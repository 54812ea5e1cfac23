"""Reads a Schedule from text, strictly, for untrusted files. Does not require torch.

A valid file takes one pass of the JSON parser for duplicate keys, one of msgspec, and one over the content. Only an
invalid file is scanned again, to report up to a hundred faults with line, column, JSON pointer and hint.
"""

from __future__ import annotations

import codecs
import json
import os
from typing import Any

import msgspec

from ..errors import ScheduleError, ScheduleFaultsError
from ..support.files import open_regular
from .density import density_fault
from .distributed_check import ranks_in
from .field_check import FieldCheck
from .json_patterns import keys_differ
from .json_values import is_array, is_list, is_object
from .limits import MAX_FAULTS, MAX_FILE_BYTES
from .positions import line_column, locate, scan
from .schedule import FEATURES, FORMAT, VERSION, Schedule, decoded
from .semantic_check import SemanticCheck
from .size_check import dims_in

_PIECE = 1 << 20
_decoder = msgspec.json.Decoder(Schedule, dec_hook=decoded)


def load(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule file.

    Args:
        path: Path of the file.

    Returns:
        The schedule.

    Raises:
        ScheduleError: The file cannot be used. Its `faults` list all faults.
    """
    data = read(path)
    try:
        return decode(data)
    except ScheduleError as error:
        error.file = os.fspath(path)
        raise


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file, at most MAX_FILE_BYTES. Raises ScheduleError R000 or R070."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScheduleError("R000", f"{os.fspath(path)!r} cannot be read: {reason}", hint="check the path") from error
    _check_size(data)
    return data


def decode(data: bytes | str) -> Schedule:
    """Decode, and check everything that does not need expanded blocks. Arrays in arguments become lists.

    Raises:
        ScheduleError: Its `faults` list all faults, at most MAX_FAULTS.
    """
    text = _text(data)
    schedule = _fast(text)
    if schedule is not None:
        check = SemanticCheck(schedule.namespaces, schedule.model.dims, schedule.model.ranks)
        faults = _header(msgspec.structs.asdict(schedule)) or check.schedule(schedule)
        if not faults:
            return schedule
        raise ScheduleFaultsError(locate(text, faults))
    raise ScheduleFaultsError(_diagnose(text))


def _text(data: bytes | str) -> bytes:
    """Return the bytes of a text in UTF-8 that is neither too large nor too dense."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            before = data[: error.start].encode()
            raise _located("R001", "half a character (an unpaired surrogate)", before) from error
    _check_size(data)
    if data.startswith(b"\xef\xbb\xbf"):
        raise ScheduleError("R001", "the file starts with a byte-order mark", "", "save it as UTF-8 without BOM", 1, 1)
    if not data.isascii():
        _check_utf8(data)
    fault = density_fault(data)
    if fault is not None:
        raise fault
    return data


def _check_utf8(data: bytes) -> None:
    """Check piece by piece: the text of a file with one emoji would take four times the file's size."""
    decoder, start, pending = codecs.getincrementaldecoder("utf-8")(), 0, 0
    while start < len(data):
        piece = data[start : start + _PIECE]
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, final=start + _PIECE >= len(data))
        except UnicodeDecodeError as error:
            at = start - pending + error.start
            raise _located("R001", f"byte 0x{data[at]:02x} is not UTF-8", data[:at]) from error
        start += _PIECE


def _check_size(data: bytes) -> None:
    if len(data) > MAX_FILE_BYTES:
        hint = "write repeated parts as blocks with several instances"
        raise ScheduleError("R070", f"the file has more than {MAX_FILE_BYTES >> 20} MiB", hint=hint)


def _located(code: str, message: str, before: bytes) -> ScheduleError:
    line, column = line_column(before, len(before))
    return ScheduleError(code, message, "", "save the file as UTF-8", line, column)


def _fast(text: bytes) -> Schedule | None:
    """Return the schedule; None if there is any fault in the text or its shape."""
    try:
        if not keys_differ(text) and scan(text):
            return None
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _diagnose(text: bytes) -> list[ScheduleError]:
    """Return every fault of a text that `_fast` refused."""
    syntax_faults = scan(text)
    if any(fault.code != "R003" for fault in syntax_faults) or len(syntax_faults) >= MAX_FAULTS:
        return syntax_faults
    tree = json.loads(text)
    if not is_object(tree):
        return [*syntax_faults, *locate(text, [_not_a_schedule("the file holds no object")])]
    header = _header(tree)
    if header:
        return locate(text, [*syntax_faults, *header][:MAX_FAULTS])
    named = tree.get("namespaces")
    namespaces = [n for n in named if isinstance(n, str)] if is_list(named) else []
    content = SemanticCheck(namespaces, dims_in(tree), ranks_in(tree))
    shape = FieldCheck(content.struct)
    shape.walk(tree, Schedule)
    faults = _once([*syntax_faults, *shape.faults, *content.faults])
    if not faults:  # the two parsers disagree about JSON
        faults = [ScheduleError("R002", "the file is not JSON that this reader accepts")]
    return locate(text, faults[:MAX_FAULTS])


def _once(faults: list[ScheduleError]) -> list[ScheduleError]:
    return list({(fault.code, fault.where, fault.message): fault for fault in faults}.values())


def _header(tree: dict[str, Any]) -> list[ScheduleError]:
    """Return the faults that make the rest unreadable. No other faults are reported with them."""
    if tree.get("format") != FORMAT:
        return [_not_a_schedule(f"`format` is not {FORMAT!r}")]
    version, requires = tree.get("version"), tree.get("requires", ())
    if type(version) is int and version > VERSION:
        hint = "update remate, or write the file again with `remate plan`"
        return [
            ScheduleError("R005", f"version {version}; this reader knows versions up to {VERSION}", "/version", hint)
        ]
    if type(version) is int and version < 1:
        return [ScheduleError("R013", f"version {version}: versions start at 1", "/version")]
    faults: list[ScheduleError] = []
    if is_array(requires):
        for index, feature in enumerate(requires):
            if isinstance(feature, str) and feature not in FEATURES:
                message = f"the file requires {feature[:80]!r}, which this reader does not have"
                faults.append(ScheduleError("R006", message, f"/requires/{index}", "update remate"))
            if len(faults) >= MAX_FAULTS:
                break
    return faults


def _not_a_schedule(message: str) -> ScheduleError:
    return ScheduleError("R004", message, "", f'a schedule file starts with "format": "{FORMAT}"', 1, 1)
