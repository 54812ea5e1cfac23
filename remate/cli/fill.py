"""Parses `--fill`: the numbers that inputs may be padded with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from remate_runtime.support.plain_text import plain

from .usage import UsageError

_WORDS = {"true": True, "false": False}


def fill_of(words: Sequence[str]) -> dict[str, bool | int | float]:
    """`["input_ids=0", "mask=false"]` as `{"input_ids": 0, "mask": False}`. Raises UsageError."""
    fill: dict[str, bool | int | float] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        if not (equals and name):
            raise UsageError(f"--fill {plain(word)}: not INPUT=NUMBER\n  hint: write input_ids=0 labels=-100")
        if name in fill:
            raise UsageError(f"--fill {plain(word)}: {plain(name)} is given twice")
        fill[name] = _number(word, text)
    return fill


def _number(word: str, text: str) -> bool | int | float:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise UsageError(f"--fill {plain(word)}: {plain(text)!r} is not a number\n  hint: write labels=-100, or mask=false")
