"""Regular expressions for correct parts of a JSON text, and a check of their keys. Does not require torch.

They match less than JSON allows (no long number, no surrogate, no deep nesting) and never more, so what they match can
be skipped. Quantifiers are possessive, so matching takes time in proportion to the text.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

NESTING = 4  # arrays and objects inside an item, at most
_RUN = 1000  # items passed in one match
_MANY = 10_000  # keys of one object
_BLANK = rb"[ \t\r\n]*+"
_TEXT = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_KEY = rb'"[^"\\\x00-\x1f]*+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]{0,18}+)(?:\.[0-9]{1,21}+)?(?:[eE][+-]?[0-9]{1,4}+)?"


def _value(depth: int) -> bytes:
    scalar = _TEXT + rb"|" + _NUMBER + rb"|true|false|null"
    if not depth:
        return rb"(?:" + scalar + rb")"
    inside = _value(depth - 1)
    more = _BLANK + rb"," + _BLANK
    entry = _KEY + _BLANK + rb":" + _BLANK + inside
    array = rb"\[" + _BLANK + rb"(?:" + inside + rb"(?:" + more + inside + rb")*+)?+" + _BLANK + rb"\]"
    mapping = rb"\{" + _BLANK + rb"(?:" + entry + rb"(?:" + more + entry + rb")*+)?+" + _BLANK + rb"\}"
    return rb"(?:" + scalar + rb"|" + array + rb"|" + mapping + rb")"


class Patterns(NamedTuple):
    """Patterns for items of arrays and entries of objects, each alone and in runs of up to _RUN.

    An item includes the comma after it. In an entry, group 1 is the key and group 2 the item.
    """

    item: re.Pattern[bytes]
    items: re.Pattern[bytes]
    entry: re.Pattern[bytes]
    entries: re.Pattern[bytes]


@cache
def patterns() -> Patterns:
    """Compile the patterns on first use, which takes a tenth of a second. Only invalid files need them."""
    item = _value(NESTING - 1) + _BLANK + rb"," + _BLANK
    entry = _BLANK + rb":" + _BLANK + item
    return Patterns(
        re.compile(item),
        re.compile(rb"(?:%b){1,%d}+" % (item, _RUN)),
        re.compile(rb'"([^"\\\x00-\x1f]*+)"' + _BLANK + rb":" + _BLANK + rb"(" + item + rb")"),
        re.compile(rb"(?:%b%b){1,%d}+" % (_KEY, entry, _RUN)),
    )


def keys_differ(text: bytes) -> bool:
    """Return whether no object of a JSON text has a key twice; also False if keys are not ASCII.

    The scanner decides then. Keeps nothing of what it reads.

    Raises:
        ValueError: The text is not JSON.
    """
    keys = _Keys()
    json.JSONDecoder(object_pairs_hook=keys.pairs, parse_int=_nothing, parse_float=_nothing).decode(
        # A byte per character: an emoji in a text would otherwise make it take four times its size.
        text.decode("latin-1")
    )
    return keys.differ


def _nothing(_: str) -> None:
    return None


class _Keys:
    differ = True

    def pairs(self, pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1 and (_twice(pairs) or not all(key.isascii() for key, _ in pairs)):
            self.differ = False


def _twice(pairs: list[tuple[str, Any]]) -> bool:
    if len(pairs) < _MANY:
        return len(dict(pairs)) < len(pairs)
    keys = sorted(key for key, _ in pairs)  # a dict of so many keys would take several times as much memory
    return any(first == second for first, second in pairwise(keys))
