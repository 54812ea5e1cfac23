"""Parses Size and Real (`expressions`). Only the grammar below is evaluated. Does not require torch.

    size   := [-] term {(+|-) term}          term   := factor {* factor}
    factor := base [^ integer] [(//|/) integer]        before a single / it is a*dim+c
    base   := integer | dimension | ( size )
    real   := side [/ side]                  side   := [-] number | dimension | ( size ) | sqrt( size )

Any spelling is parsed, and only that of `str(size)` is accepted: the fault for another spelling shows how to write it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ..errors import ScheduleError
from .expressions import Real, Side, Size, constant, dimension, divided
from .limits import MAX_DEGREE, MAX_EXPRESSION

_TOKEN = re.compile(r"//|[-+*/^()]|[0-9]{1,19}|[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,21})?(?:e[+-]?[0-9]{1,3})?")
_DIM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
RESERVED = ("sqrt", "inf", "nan")  # words that cannot name a dimension
_MAX_PARENTHESES = 32  # each takes some stack frames of the parser
_HINT = "write a sum such as 2*b*t+1, ((t+7)//8)*b or h/4"


def is_dimension(name: str) -> bool:
    """Return whether a name is valid for a dimension."""
    return _DIM.fullmatch(name) is not None and name not in RESERVED


@lru_cache(maxsize=8192)
def parse_size(text: str) -> Size:
    """Raise ScheduleError R024 if `text` is not the text of a Size."""
    tokens = _Tokens(text)
    size = _sum(tokens)
    tokens.end()
    _as_written(size, text)
    return size


@lru_cache(maxsize=4096)
def parse_real(text: str) -> Real:
    """Raise ScheduleError R024 if `text` is not the text of a Real that follows from some dimension."""
    parts = _sides(text)
    if not 1 <= len(parts) <= 2:
        raise ScheduleError("R024", f"{text[:80]!r}: more than one division", hint="write n/(expression)")
    real = Real(*(_side(part) for part in parts))
    if not real.dims:
        raise ScheduleError("R024", f"{text[:80]!r} follows from no dimension", hint="write the number")
    _as_written(real, text)
    return real


def _as_written(parsed: Size | Real, text: str) -> None:
    if str(parsed) != text:
        raise ScheduleError("R024", f"{text[:80]!r} is spelled otherwise", hint=f"write it as {parsed}")


def _sides(text: str) -> list[str]:
    """Split `text` at the single slashes outside of parentheses."""
    if len(text) > MAX_EXPRESSION:
        raise ScheduleError("R024", f"an expression of more than {MAX_EXPRESSION} characters")
    depth, parts = 0, [""]
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "/" and not depth and "/" not in text[max(0, at - 1) : at] + text[at + 1 : at + 2]:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _side(text: str) -> Side:
    if _NUMBER.fullmatch(text):
        return Side(number=_finite(text))
    root = text.startswith("sqrt(")
    tokens = _Tokens(text.removeprefix("sqrt"))
    size = _base(tokens)
    tokens.end()
    return Side(size=size, root=root)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ScheduleError("R024", f"{text[:80]!r} is too large for 64 bits")
    return number


class _Tokens:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_EXPRESSION:
            raise ScheduleError("R024", f"an expression of more than {MAX_EXPRESSION} characters")
        self.text, self._left = text, _TOKEN.findall(text)
        if "".join(self._left) != text or not text or self._left.count("(") > _MAX_PARENTHESES:
            raise self.fault()
        self._left.reverse()

    def peek(self) -> str:
        return self._left[-1] if self._left else ""

    def take(self) -> str:
        return self._left.pop() if self._left else ""

    def accept(self, *words: str) -> str:
        return self.take() if self.peek() in words and self._left else ""

    def integer(self) -> int:
        if not self.peek().isdigit():
            raise self.fault()
        return int(self.take())

    def end(self) -> None:
        if self._left:
            raise self.fault()

    def fault(self) -> ScheduleError:
        return ScheduleError("R024", f"{self.text[:80]!r} is no expression of sizes", hint=_HINT)


def _sum(tokens: _Tokens) -> Size:
    total, sign = constant(0), -1 if tokens.accept("-") else 1
    while True:
        total = total + _product(tokens) * constant(sign)
        word = tokens.accept("+", "-")
        if not word:
            return total
        sign = -1 if word == "-" else 1


def _product(tokens: _Tokens) -> Size:
    product = _power(tokens)
    while tokens.accept("*"):
        product = product * _power(tokens)
    return product


def _power(tokens: _Tokens) -> Size:
    base = _base(tokens)
    product = base
    if tokens.accept("^"):
        power = tokens.integer()
        if not 1 <= power <= MAX_DEGREE:
            raise ScheduleError("R024", f"a power of {power}", hint=f"powers are 1 to {MAX_DEGREE}")
        for _ in range(power - 1):
            product = product * base
    word = tokens.accept("//", "/")
    return divided(product, tokens.integer(), exact=word == "/") if word else product


def _base(tokens: _Tokens) -> Size:
    word = tokens.take()
    if word.isdigit():
        return constant(int(word)) + constant(0)
    if word == "(":
        size = _sum(tokens)
        if not tokens.accept(")"):
            raise tokens.fault()
        return size
    if not is_dimension(word):
        raise tokens.fault()
    return dimension(word)
