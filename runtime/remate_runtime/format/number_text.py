"""Numbers that follow from live attributes: `1/(1 - %drop.p)`, computed with doubles at each call. Does not require
torch.

sum     := product {(" + "|" - ") product}
product := factor {(*|/) factor}
factor  := [-] base
base    := number | %name | ( sum ) | sqrt ( sum ) | exp ( sum ) | log ( sum ) | pow ( sum , sum )

Each operation is rounded once, from left to right, as Python computes it. Functions are those of Python's `math`. Only
this grammar is evaluated. Any spelling is parsed, and only that of `written_number` is accepted.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..errors import ScheduleError
from .limits import MAX_EXPRESSION

Tree = (
    float | str | tuple[Any, ...]
)  # a number, the name of a live attribute, or (operation, operands...): ("/", 1.0, "p")

FUNCTIONS: dict[str, Callable[..., float]] = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log, "pow": math.pow}
_BINARY: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b,
}
_OPERANDS = {"sqrt": 1, "exp": 1, "log": 1, "pow": 2}
_LEVELS = {"+": 1, "-": 1, "*": 2, "/": 2, "neg": 3}
_BASE = 4
_TOKEN = re.compile(
    r" *(%[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*|[0-9]{1,18}(?:\.[0-9]{1,21})?(?:e[+-]?[0-9]{1,3})?|[a-z]+|[-+*/(),])"
)
_MAX_NESTING = 32  # each takes some stack frames of the parser
_EXACT = float(1 << 53)  # integers up to here are written without a point
_HINT = "write a sum such as 1 - %p, %alpha*2 or 1/(1 - %p)"


@lru_cache(maxsize=4096)
def parse_number(text: str) -> Tree:
    """Raise ScheduleError R027 if `text` is not the text of a number that follows from some live attribute."""
    if len(text) > MAX_EXPRESSION:
        raise ScheduleError("R027", f"an expression of more than {MAX_EXPRESSION} characters")
    tokens = _NumberTokens(text)
    tree = _sum(tokens)
    tokens.end()
    if not names_of(tree):
        raise ScheduleError("R027", f"{text[:80]!r} follows from no live attribute", hint="write the number")
    if written_number(tree) != text:
        raise ScheduleError("R027", f"{text[:80]!r} is spelled otherwise", hint=f"write it as {written_number(tree)}")
    return tree


def number_fault(text: str) -> ScheduleError | None:
    """Return the fault in the text of a number (R027)."""
    try:
        parse_number(text)
    except ScheduleError as fault:
        return fault
    return None


def written_number(tree: Tree) -> str:
    """Return the canonical spelling of a number."""
    return _spelled(tree, 0)


def names_of(tree: Tree) -> tuple[str, ...]:
    """Return the live attributes in a number, each once, in the order of the text."""
    return tuple(dict.fromkeys(_names(tree)))


def renamed(tree: Tree, name: Callable[[str], str]) -> Tree:
    """Return the same number with renamed attributes."""
    if isinstance(tree, tuple):
        return (tree[0], *(renamed(each, name) for each in tree[1:]))
    return name(tree) if isinstance(tree, str) else tree


def computed(tree: Tree) -> Callable[[Sequence[float]], float]:
    """Return a function of the attributes' values, in the order of `names_of`.

    It raises ArithmeticError or ValueError if there is no finite result.
    """
    compute = _computed(tree, {name: at for at, name in enumerate(names_of(tree))})

    def number(values: Sequence[float]) -> float:
        result = compute(values)
        if not math.isfinite(result):
            raise OverflowError("the result is not finite")
        return result

    return number


def _names(tree: Tree) -> Iterator[str]:
    if isinstance(tree, tuple):
        for each in tree[1:]:
            yield from _names(each)
    elif isinstance(tree, str):
        yield tree


def _computed(tree: Tree, at: dict[str, int]) -> Callable[[Sequence[float]], float]:
    if isinstance(tree, str):
        return operator.itemgetter(at[tree])
    if not isinstance(tree, tuple):
        return lambda values: tree
    name, *below = tree
    operands = [_computed(each, at) for each in below]
    if name == "neg":
        return lambda values: -operands[0](values)
    if len(operands) == 1:
        return lambda values: FUNCTIONS[name](operands[0](values))
    function = _BINARY.get(name) or FUNCTIONS[name]
    first, second = operands
    return lambda values: function(first(values), second(values))


def _spelled(tree: Tree, level: int) -> str:
    """Format a tree. level: of the loosest operation without parentheses here."""
    if isinstance(tree, str):
        return f"%{tree}"
    if not isinstance(tree, tuple):
        return _number(tree) if tree >= 0 and math.copysign(1.0, tree) > 0 else _spelled(("neg", -tree), level)
    name, *operands = tree
    if name in _OPERANDS:
        return f"{name}({', '.join(_spelled(each, 0) for each in operands)})"
    own = _LEVELS[name]
    if name == "neg":
        text = f"-{_spelled(operands[0], _BASE)}"
    else:
        sign = name if own == 2 else f" {name} "
        text = f"{_spelled(operands[0], own)}{sign}{_spelled(operands[1], _BASE if own == 2 else 2)}"
        # A sign at the beginning of a right operand would be next to another sign.
        if own == 1 and text[len(text) - len(_spelled(operands[1], 2)) :].startswith("-"):
            text = f"{_spelled(operands[0], own)}{sign}{_spelled(operands[1], _BASE)}"
    return text if own >= level else f"({text})"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and value <= _EXACT else repr(value)


class _NumberTokens:
    def __init__(self, text: str) -> None:
        self.text, self._left, at = text, list[str](), 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.fault()
            self._left.append(match[1])
            at = match.end()
        if not self._left or self._left.count("(") > _MAX_NESTING:
            raise self.fault()
        self._left.reverse()

    def take(self) -> str:
        return self._left.pop() if self._left else ""

    def accept(self, *words: str) -> str:
        return self._left.pop() if self._left and self._left[-1] in words else ""

    def end(self) -> None:
        if self._left:
            raise self.fault()

    def fault(self) -> ScheduleError:
        return ScheduleError("R027", f"{self.text[:80]!r} is no expression of live attributes", hint=_HINT)


def _sum(tokens: _NumberTokens) -> Tree:
    tree = _product(tokens)
    while sign := tokens.accept("+", "-"):
        tree = (sign, tree, _product(tokens))
    return tree


def _product(tokens: _NumberTokens) -> Tree:
    tree = _factor(tokens)
    while sign := tokens.accept("*", "/"):
        tree = (sign, tree, _factor(tokens))
    return tree


def _factor(tokens: _NumberTokens) -> Tree:
    if tokens.accept("-"):
        below = _base(tokens)
        return -below if isinstance(below, float) else ("neg", below)
    return _base(tokens)


def _base(tokens: _NumberTokens) -> Tree:
    word = tokens.take()
    if word.startswith("%"):
        return word[1:]
    if word[:1].isdigit():
        number = float(word)
        if not math.isfinite(number):
            raise tokens.fault()
        return number
    if word == "(":
        tree = _sum(tokens)
    elif word in _OPERANDS and tokens.accept("("):
        tree = (word, _sum(tokens))
        for _ in range(_OPERANDS[word] - 1):
            if not tokens.accept(","):
                raise tokens.fault()
            tree = (*tree, _sum(tokens))
    else:
        raise tokens.fault()
    if not tokens.accept(")"):
        raise tokens.fault()
    return tree
