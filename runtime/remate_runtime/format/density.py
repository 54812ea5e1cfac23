"""The density of a text: a few bytes of JSON can occupy hundreds in memory. Does not require torch."""

from __future__ import annotations

import re

from ..errors import ScheduleError
from .limits import MAX_BRACKETS, MAX_COMMAS, MAX_KEYS, MAX_TEXTS

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")++', re.DOTALL)
_PIECE = 1 << 16
_Counts = tuple[int, int, int, int]  # arrays and objects, keys, commas, texts


def density_fault(data: bytes) -> ScheduleError | None:
    """Return R072 for a text with more strings, and arrays, objects, keys or commas outside of them, than its size
    allows.

    None otherwise.
    """
    if _excess(_counts(data), len(data)) is None:  # includes those inside strings, so it is an upper bound
        return None
    excess = _excess(_counts_outside_texts(data), len(data))
    if excess is None:
        return None
    what, count, limit = excess
    message = f"{count:,} {what}, more than the {limit:,} that a file of {len(data):,} bytes may hold"
    return ScheduleError("R072", message, "", "large tensors belong into buffers of the model", 1, 1)


def _counts(data: bytes) -> _Counts:
    return data.count(b"[") + data.count(b"{"), data.count(b":"), data.count(b","), data.count(b'"') // 2


def _counts_outside_texts(data: bytes) -> _Counts:
    """Count piece by piece, because a copy of the text without its strings would need many times its size."""
    at, piece, total = 0, _PIECE, (0, 0, 0, 0)
    while at < len(data):
        whole = _WHOLE.match(data, at, at + piece)
        if whole is None and at + piece < len(data):  # a string longer than the piece
            piece *= 2
            continue
        end = len(data) if whole is None else whole.end()
        rest, texts = _TEXT.subn(b"", data[at:end])
        brackets, keys, commas, _ = _counts(rest)
        total = total[0] + brackets, total[1] + keys, total[2] + commas, total[3] + texts
        at, piece = end, _PIECE
    return total


def _excess(counts: _Counts, size: int) -> tuple[str, int, int] | None:
    limits = (("arrays and objects", MAX_BRACKETS), ("keys", MAX_KEYS), ("commas", MAX_COMMAS), ("texts", MAX_TEXTS))
    for count, (what, (some, each)) in zip(counts, limits, strict=True):
        if count > some + size // each:
            return what, count, some + size // each
    return None
