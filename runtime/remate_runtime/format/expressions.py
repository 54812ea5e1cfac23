"""Expressions of named dimensions, which replace numbers in a schedule for a range of sizes. Does not require torch.

Size      t+1   b*t   4*s^2   8*((t+7)//8)-t   16*(h/4)*(w/4)        a sum of terms; an integer
Term      4*s^2                                                      an integer coefficient times factors
Factor    t   s^2   (t+7)//8   (5*b*t+1)//16   h/4                   a dimension, or a Size by a number; ^ power
Real      2/(n-1)   sqrt(t)   1/sqrt(d)   (b*t)                      one side, or the rounded quotient of two
Side      2   n-1   sqrt(t)                                          a number, a Size, or a square root

A factor with `//` rounds down. A factor with `/` must divide without remainder (exact); it has one dimension,
`(a*t+c)/q`.

All objects are frozen and in normal form. `constant`, `dimension`, `divided`, `+`, `*` and the parser
(`expression_text`) create only that. Equal expressions are therefore equal objects with one text, `str(size)`, which
files contain. `size.at({"t": 64})` returns the number.

Normal form: like terms are merged. Terms are in order of falling degree, positive ones first, with the constant last;
factors are in order of their names. In a quotient, coefficients are smaller than the divisor, none is negative, and
they have no common divisor with it. Whole multiples are moved out of it: `(t+9)//8` is `(t+1)//8+1`. The quotient of a
quotient is one: `(t//8+1)//2` is `(t+8)//16`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..errors import ScheduleError
from .limits import MAX_COEFFICIENT, MAX_DEGREE, MAX_INTEGER, MAX_TERMS


class Factor(msgspec.Struct, frozen=True):
    """dim ^ power, or (above / divisor) ^ power, rounded down before the power.

    Attributes:
        dim: The name; "" for a quotient.
        above: The dividend of a quotient.
        divisor: The divisor of a quotient; 1 otherwise.
        exact: The division leaves no remainder.
        power: The power.
    """

    dim: str = ""
    above: Size | None = None
    divisor: int = 1
    exact: bool = False
    power: int = 1

    def at(self, dims: Mapping[str, int]) -> int:
        if self.above is not None:
            whole, rest = divmod(self.above.at(dims), self.divisor)
            if rest and self.exact:
                message = f"{self.bare} leaves a rest at {spelled({name: dims[name] for name in sorted(self.dims)})}"
                raise ScheduleError("R025", message, hint="give the dimension the `multiple` that it needs")
            return whole**self.power
        if self.dim not in dims:
            raise ScheduleError("R025", f"the size {self.dim!r} is not known", hint="state it in `model.dims`")
        return dims[self.dim] ** self.power

    def __str__(self) -> str:
        text = self.dim if self.above is None else f"({self.bare})"
        return text if self.power == 1 else f"{text}^{self.power}"

    @property
    def bare(self) -> str:
        """Return its text without the power, and without the parentheses that it needs among others."""
        if self.above is None:
            return self.dim
        above = str(self.above)
        return f"{above if above.isidentifier() else f'({above})'}{'/' if self.exact else '//'}{self.divisor}"

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions in it."""
        return frozenset((self.dim,)) if self.above is None else self.above.dims

    @property
    def degree(self) -> int:
        return self.power * (1 if self.above is None else self.above.degree)

    @property
    def order(self) -> tuple[Any, ...]:
        """Return the key by which the normal form sorts: by the first name, then by divisor and dividend."""
        if self.above is None:
            return self.dim, 1, (), False, self.power
        terms = tuple((term.coefficient, term.order) for term in self.above.terms)
        return terms[0][1][0][0], self.divisor, terms, self.exact, self.power


class Term(msgspec.Struct, frozen=True):
    """coefficient * factors; without factors, a constant."""

    coefficient: int
    factors: tuple[Factor, ...] = ()

    @property
    def degree(self) -> int:
        return sum(factor.degree for factor in self.factors)

    @property
    def order(self) -> tuple[Any, ...]:
        """Return the key by which the normal form sorts terms of one degree and sign."""
        return tuple(factor.order for factor in self.factors)

    def at(self, dims: Mapping[str, int]) -> int:
        return self.coefficient * math.prod(factor.at(dims) for factor in self.factors)

    def __str__(self) -> str:
        if not self.factors:
            return str(self.coefficient)
        if self.coefficient == 1 and len(self.factors) == 1 and self.factors[0].power == 1:
            return self.factors[0].bare
        sign = {1: "", -1: "-"}.get(self.coefficient, f"{self.coefficient}*")
        return sign + "*".join(map(str, self.factors))


class Size(msgspec.Struct, frozen=True):
    """A sum of terms; without terms, 0."""

    terms: tuple[Term, ...] = ()

    def at(self, dims: Mapping[str, int]) -> int:
        """Return the value at a size.

        Raises:
            ScheduleError: R025 for a name that `dims` lacks, a division with a remainder that must have none, and a
                number beyond 64 bits.
        """
        number = sum(term.at(dims) for term in self.terms)
        if not -MAX_INTEGER - 1 <= number <= MAX_INTEGER:
            raise ScheduleError("R025", f"{self} does not fit 64 bits at {spelled(dims)}")
        return number

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions in it."""
        return frozenset[str]().union(*(factor.dims for term in self.terms for factor in term.factors))

    @property
    def degree(self) -> int:
        return max((term.degree for term in self.terms), default=0)

    def __add__(self, other: Size) -> Size:
        return _collected((*self.terms, *other.terms))

    def __mul__(self, other: Size) -> Size:
        return _collected(
            Term(left.coefficient * right.coefficient, _multiplied(left.factors, right.factors))
            for left in self.terms
            for right in other.terms
        )

    def __str__(self) -> str:
        text = "".join(f"{'' if term.coefficient < 0 else '+'}{term}" for term in self.terms) or "0"
        return text.removeprefix("+")


def constant(number: int) -> Size:
    return Size((Term(number),)) if number else Size()


def dimension(name: str) -> Size:
    return Size((Term(1, (Factor(name),)),))


def divided(size: Size, divisor: int, exact: bool = False) -> Size:
    """Divide `size` by a number, rounded down, or (exact) without remainder.

    Raises:
        ScheduleError: R024 if it can never be exact, or if an exact `size` is not `a*dim + c`.
    """
    varying = [term for term in size.terms if term.factors]
    if divisor < 1 or (exact and not _is_linear(size)):
        hint = "write (a*dim+c)/q with numbers a, c and q > 0, or round down: (2*b*t+c)//q"
        raise ScheduleError("R024", f"({size}) is divided by {divisor}", hint=hint)
    offset = next((term.coefficient for term in size.terms if not term.factors), 0)
    if not varying:
        if exact and offset % divisor:
            raise ScheduleError("R024", f"{offset}/{divisor} is never exact")
        return constant(offset // divisor)
    if varying[0].coefficient < 0:
        negated = size * constant(-1) + constant(0 if exact else divisor - 1)
        return divided(negated, divisor, exact) * constant(-1)
    common = math.gcd(divisor, *(term.coefficient for term in varying))
    if exact and offset % common:
        raise ScheduleError("R024", f"({size})/{divisor} is never exact")
    divisor //= common
    terms = [Term(term.coefficient // common, term.factors) for term in size.terms]  # rounds down a constant
    whole = _collected(Term(term.coefficient // divisor, term.factors) for term in terms)
    rest = _collected(Term(term.coefficient % divisor, term.factors) for term in terms)
    return whole + _quotient(rest, divisor, exact) if rest.degree else whole


def _quotient(above: Size, divisor: int, exact: bool) -> Size:
    """Return the quotient of a dividend without whole multiples. A quotient is not divided again."""
    first = above.terms[0]
    if first.coefficient == 1 and len(first.factors) == 1 and all(not term.factors for term in above.terms[1:]):
        inner = first.factors[0]
        if inner.above is not None and not inner.exact and inner.power == 1:
            offset = sum(term.coefficient for term in above.terms[1:]) * inner.divisor
            return divided(inner.above + constant(offset), inner.divisor * divisor)
    if divisor > MAX_COEFFICIENT:
        raise ScheduleError("R024", "a divisor larger than any size needs", hint="divisors are up to 2^60")
    return Size((Term(1, (Factor(above=above, divisor=divisor, exact=exact),)),))


def _is_linear(size: Size) -> bool:
    """Return whether an expression is `a*dim + c`, or a number."""
    varying = [term.factors for term in size.terms if term.factors]
    return not varying or (len(varying) == 1 and size.degree == 1 and varying[0][0].above is None)


class Side(msgspec.Struct, frozen=True):
    """A side of a Real: `number`, or `size`, or the square root of `size`."""

    number: float = 0.0
    size: Size | None = None
    root: bool = False

    def at(self, dims: Mapping[str, int]) -> float:
        if self.size is None:
            return self.number
        number = self.size.at(dims)
        if self.root and number < 0:
            raise ScheduleError("R025", f"{self} is the root of {number} at {spelled(dims)}")
        return math.sqrt(number) if self.root else float(number)

    def __str__(self) -> str:
        if self.size is None:
            return str(int(self.number)) if self.number == int(self.number) else repr(self.number)
        text = str(self.size)
        return f"sqrt({text})" if self.root else text if text.isidentifier() else f"({text})"


class Real(msgspec.Struct, frozen=True):
    """A float: `above`, or `above / below`, divided and rounded once, as in eager."""

    above: Side
    below: Side | None = None

    def at(self, dims: Mapping[str, int]) -> float:
        """Return the value at a size.

        Raises:
            ScheduleError: R025 as in Size.at, for a division by 0 and for the root of a negative number.
        """
        above = self.above.at(dims)
        if self.below is None:
            return above
        below = self.below.at(dims)
        if below == 0:
            raise ScheduleError("R025", f"{self} divides by 0 at {spelled(dims)}")
        return above / below

    @property
    def dims(self) -> frozenset[str]:
        sides = (self.above, self.below)
        return frozenset[str]().union(*(side.size.dims for side in sides if side and side.size))

    def __str__(self) -> str:
        return f"{self.above}" if self.below is None else f"{self.above}/{self.below}"


def spelled(dims: Mapping[str, int]) -> str:
    """Format sizes: `b=4, t=64`."""
    return ", ".join(f"{name}={number}" for name, number in dims.items())


def _multiplied(left: tuple[Factor, ...], right: tuple[Factor, ...]) -> tuple[Factor, ...]:
    powers: dict[Factor, int] = {}
    for factor in (*left, *right):
        base = msgspec.structs.replace(factor, power=1)
        powers[base] = powers.get(base, 0) + factor.power
    factors = (msgspec.structs.replace(base, power=power) for base, power in powers.items())
    return tuple(sorted(factors, key=lambda factor: factor.order))


def _collected(terms: Iterable[Term]) -> Size:
    """Add like terms, in the order of the normal form. Raises ScheduleError R024 beyond the limits of a file."""
    coefficients: dict[tuple[Factor, ...], int] = {}
    for term in terms:
        coefficients[term.factors] = coefficients.get(term.factors, 0) + term.coefficient
    summed = [Term(coefficient, factors) for factors, coefficient in coefficients.items() if coefficient]
    summed.sort(key=lambda term: (-term.degree, term.coefficient < 0, term.order))
    if len(summed) > MAX_TERMS or any(t.degree > MAX_DEGREE or abs(t.coefficient) > MAX_COEFFICIENT for t in summed):
        hint = f"up to {MAX_TERMS} terms of degree up to {MAX_DEGREE}, coefficients up to 2^60"
        raise ScheduleError("R024", "an expression larger than any size needs", hint=hint)
    return Size(tuple(summed))
