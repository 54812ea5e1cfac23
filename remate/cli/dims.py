"""Parses `--dims`: the sizes of a model's inputs that may vary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .usage import UsageError

_WORDS = ("auto", "none")
_NO_NAME = "-"
_LIMIT = re.compile(r"([^<=]+)<=([0-9]{1,18})")


def dims_of(words: Sequence[str]) -> Any:
    """`["input_ids=b,t", "t=16..1024/8", "b*t<=4096"]` as `{"input_ids": {0: "b", 1: "t=16..1024/8"}, "b*t": 4096}`.

    Raises UsageError.
    """
    if len(words) == 1 and words[0] in _WORDS:
        return words[0]
    limits = [_LIMIT.fullmatch(word.replace(" ", "")) for word in words]
    parts = [word.partition("=") for word, limit in zip(words, limits, strict=True) if limit is None]
    for name, equals, value in parts:
        if not (name and equals and value):
            raise UsageError(
                f"--dims {name}: neither axes nor a range\n  hint: write input_ids=b,t (axes), t=16..1024 (range) or "
                "'b*t<=4096' (limit)"
            )
    for name in (twice := Counter(name for name, _, _ in parts)):
        if twice[name] > 1:
            raise UsageError(f"--dims {name}=…: given {twice[name]} times\n  hint: state it once")
    ranges = {name: f"{name}={value}" for name, _, value in parts if ".." in value}
    axes = {name: value.split(",") for name, _, value in parts if ".." not in value}
    used = {axis for each in axes.values() for axis in each}
    for name in ranges:
        if name not in used:
            raise UsageError(
                f"--dims {ranges[name]}: no axis is called {name}\n  hint: write input_ids={name} beside it"
            )
    given = {limit[1]: int(limit[2]) for limit in limits if limit is not None}
    return given | {
        argument: {at: ranges.get(name, name) for at, name in enumerate(names) if name != _NO_NAME}
        for argument, names in axes.items()
    }
