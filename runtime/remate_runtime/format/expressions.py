"""Expressions of named dimensions, which replace numbers in a schedule for a range of sizes. Does not require torch.

Size      t+1   b*t   4*s^2   8*((t+7)//8)-t   16*(h/4)*(w/4)        a sum of terms; an integer
Term      4*s^2                                                      an integer coefficient times factors
Factor    t   s^2   (t+7)//8   h/4                                   ((scale*dim + offset) / divisor) ^ power
Real      2/(n-1)   sqrt(t)   1/sqrt(d)   (b*t)                      one side, or the rounded quotient of two
Side      2   n-1   sqrt(t)                                          a number, a Size, or a square root

A factor with `//` rounds down. A factor with `/` must divide without remainder (exact).

All objects are frozen and in normal form. `constant`, `dimension`, `divided`, `+`, `*` and the parser
(`expression_text`) create only that. Equal expressions are therefore equal objects with one text, `str(size)`, which
files contain. `size.at({"t": 64})` returns the number.

Normal form: like terms are merged. Terms are in order of falling degree, positive ones first, with the constant last;
factors are in order of their names. In a factor 0 < scale < divisor and 0 <= offset < divisor, without common divisor
(without division: 1, 0 and 1). Whole multiples are moved out of a division: `(t+9)//8` is `(t+1)//8+1`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from ..errors import ScheduleError
from .limits import MAX_COEFFICIENT, MAX_DEGREE, MAX_INTEGER, MAX_TERMS


class Factor(msgspec.Struct, frozen=True, order=True):
    """((scale * dim + offset) / divisor) ^ power, rounded down before the power; `exact`: divides without remainder."""

    dim: str
    divisor: int = 1
    scale: int = 1
    offset: int = 0
    exact: bool = False
    power: int = 1

    def at(self, dims: Mapping[str, int]) -> int:
        if self.dim not in dims:
            raise ScheduleError("R025", f"the size {self.dim!r} is not known", hint="state it in `model.dims`")
        whole, rest = divmod(self.scale * dims[self.dim] + self.offset, self.divisor)
        if rest and self.exact:
            message = f"{self.bare} leaves a rest at {self.dim}={dims[self.dim]}"
            raise ScheduleError("R025", message, hint="give the dimension the `multiple` that it needs")
        return whole**self.power

    def __str__(self) -> str:
        text = self.dim if self.divisor == 1 else f"({self.bare})"
        return text if self.power == 1 else f"{text}^{self.power}"

    @property
    def bare(self) -> str:
        """Return its text without the power, and without the parentheses that it needs among others."""
        if self.divisor == 1:
            return self.dim
        above = self.dim if self.scale == 1 else f"{self.scale}*{self.dim}"
        above += f"+{self.offset}" if self.offset else ""
        return f"{above if above == self.dim else f'({above})'}{'/' if self.exact else '//'}{self.divisor}"


class Term(msgspec.Struct, frozen=True):
    """coefficient * factors; without factors, a constant."""

    coefficient: int
    factors: tuple[Factor, ...] = ()

    @property
    def degree(self) -> int:
        return sum(factor.power for factor in self.factors)

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
        return frozenset(factor.dim for term in self.terms for factor in term.factors)

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
        ScheduleError: R024 unless `size` is `a*dim + c`, or if it can never be exact.
    """
    factors = {term.factors for term in size.terms if term.factors}
    if (
        divisor < 1
        or len(factors) > 1
        or any(f != Factor(f.dim) for group in factors for f in group)
        or size.degree > 1
    ):
        raise ScheduleError(
            "R024", f"({size}) is divided by {divisor}", hint="write (a*dim+c)//q, with numbers a, c and q > 0"
        )
    offset = next((term.coefficient for term in size.terms if not term.factors), 0)
    if not factors:
        if exact and offset % divisor:
            raise ScheduleError("R024", f"{offset}/{divisor} is never exact")
        return constant(offset // divisor)
    (name,) = size.dims
    scale = next(term.coefficient for term in size.terms if term.factors)
    if scale < 0:
        negated = dimension(name) * constant(-scale) + constant(-offset + (0 if exact else divisor - 1))
        return divided(negated, divisor, exact) * constant(-1)
    common = math.gcd(scale, divisor)
    if exact and offset % common:
        raise ScheduleError("R024", f"({size})/{divisor} is never exact")
    scale, offset, divisor = scale // common, offset // common, divisor // common
    whole = dimension(name) * constant(scale // divisor) + constant(offset // divisor)
    scale, offset = scale % divisor, offset % divisor
    return whole + Size((Term(1, (Factor(name, divisor, scale, offset, exact),)),)) if scale else whole


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
    return tuple(sorted(msgspec.structs.replace(base, power=power) for base, power in powers.items()))


def _collected(terms: Iterable[Term]) -> Size:
    """Add like terms, in the order of the normal form. Raises ScheduleError R024 beyond the limits of a file."""
    coefficients: dict[tuple[Factor, ...], int] = {}
    for term in terms:
        coefficients[term.factors] = coefficients.get(term.factors, 0) + term.coefficient
    summed = [Term(coefficient, factors) for factors, coefficient in coefficients.items() if coefficient]
    summed.sort(key=lambda term: (-term.degree, term.coefficient < 0, term.factors))
    if len(summed) > MAX_TERMS or any(t.degree > MAX_DEGREE or abs(t.coefficient) > MAX_COEFFICIENT for t in summed):
        hint = f"up to {MAX_TERMS} terms of degree up to {MAX_DEGREE}, coefficients up to 2^60"
        raise ScheduleError("R024", "an expression larger than any size needs", hint=hint)
    return Size(tuple(summed))
