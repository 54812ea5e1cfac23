"""Checks named dimensions and expressions of them. Does not require torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ..errors import ScheduleError
from .expression_text import RESERVED, is_dimension, parse_real, parse_size
from .expressions import Factor, Real, Size
from .json_values import object_at
from .limits import MAX_DIMS, MAX_EXPRESSIONS, MAX_SIZE
from .schedule import Dimension, Model
from .signature import escape, input_leaves
from .sized_type import SizedType, parse_sized
from .suggest import did_you_mean
from .tensor_type import parse_type

_CORNERS = ("planned", "min", "max")  # the sizes at which every expression must have a value


def dims_in(tree: object) -> dict[str, Dimension]:
    """Return the readable dimensions of a file with faults."""
    dimensions: dict[str, Dimension] = {}
    for name, value in object_at(object_at(tree, "model"), "dims").items():
        try:
            dimensions[name] = msgspec.convert(value, Dimension)
        except msgspec.ValidationError:  # reported with the field
            dimensions[name] = Dimension(min=0, max=0, planned=0)
    return dimensions


class SizeCheck:
    """Checks the expressions of a file, each text once."""

    def __init__(self, dims: Mapping[str, Dimension]) -> None:
        self.dims = dims
        sound = len(dims) <= MAX_DIMS and all(dimension_fault(name, dim) is None for name, dim in dims.items())
        self._sizes = [{name: getattr(dim, corner) for name, dim in dims.items()} for corner in _CORNERS]
        self._sizes = self._sizes if sound else []
        self._found: dict[tuple[Any, str], ScheduleError | None] = {}
        self._characters = 0  # of texts with named sizes
        self._reported: set[str] = set()  # unknown names, each of which is reported once

    def type_fault(self, text: str) -> ScheduleError | None:
        """Return the fault of a tensor type with expressions as sizes."""
        fault = self._once(parse_type, text)
        return self._once(parse_sized, text) if fault is not None and self.dims else fault

    def fixed_type_fault(self, text: str) -> ScheduleError | None:
        """Return the fault of a type in the model, none of whose sizes may differ."""
        return self._once(parse_type, text)

    def expression_fault(self, text: str, real: bool = False) -> ScheduleError | None:
        """Return the fault in the text of a Size, or (real) of a Real."""
        return self._once(parse_real if real else parse_size, text)

    def _once(self, parse: Callable[[str], object], text: str) -> ScheduleError | None:
        key = parse, text
        if key not in self._found:
            self._characters += len(text) * (parse is not parse_type)
            if self._characters > MAX_EXPRESSIONS:
                message = f"over {MAX_EXPRESSIONS} characters of different expressions of sizes"
                return ScheduleError("R072", message, hint="write repeated parts as blocks")
            self._found[key] = self._judge(parse, text)
        return self._found[key]

    def _judge(self, parse: Callable[[str], object], text: str) -> ScheduleError | None:
        try:
            parsed = parse(text)
            if isinstance(parsed, (SizedType, Size, Real)):
                self._known(parsed)
                for size in self._sizes if parsed.dims <= self.dims.keys() else ():
                    parsed.at(size)
        except ScheduleError as fault:
            return fault
        return None

    def _known(self, parsed: SizedType | Size | Real) -> None:
        unknown = sorted(parsed.dims - self.dims.keys())
        for name in unknown:
            if name in self._reported:
                continue
            self._reported.add(name)
            hint = did_you_mean(name, self.dims, "name it in `model.dims`")
            raise ScheduleError("R025", f"{parsed}: the size {name!r} is not known", hint=hint)
        for factor in _exact(parsed) if not unknown else ():
            (name,) = factor.dims
            dim = self.dims[name]
            if dim.multiple % factor.divisor and dim.min != dim.max:
                message = f"{factor.bare} leaves a rest at some sizes: {name} is a multiple of {dim.multiple}"
                raise ScheduleError("R025", message, hint=f'give it "multiple": {factor.divisor}, or round down: //')


def _exact(parsed: SizedType | Size | Real) -> Iterator[Factor]:
    """Yield the quotients that must leave no remainder, also those inside of others."""
    if isinstance(parsed, SizedType):
        sizes = [*parsed.shape, *(parsed.strides or ())]
    elif isinstance(parsed, Real):
        sizes = [side.size for side in (parsed.above, parsed.below) if side and side.size]
    else:
        sizes = [parsed]
    for size in sizes:
        for factor in (factor for term in size.terms for factor in term.factors):
            if factor.exact:
                yield factor
            elif factor.above is not None:
                yield from _exact(factor.above)


def dimension_fault(name: str, dim: Dimension) -> ScheduleError | None:
    """Return the fault of a single dimension (R026)."""
    if not is_dimension(name):
        hint = f"letters, digits and _, up to 32 characters, and none of {', '.join(RESERVED)}"
        return ScheduleError("R026", f"{name[:80]!r} cannot be the name of a size", hint=hint)
    if not 1 <= dim.min <= dim.planned <= dim.max <= MAX_SIZE:
        message = f"{name} is planned at {dim.planned} and ranges from {dim.min} to {dim.max}"
        return ScheduleError("R026", message[:200], hint=f"1 <= min <= planned <= max <= {MAX_SIZE}")
    if dim.multiple < 1 or any(getattr(dim, corner) % dim.multiple for corner in _CORNERS):
        message = f"{name}: min, max or planned is no multiple of {dim.multiple}"
        return ScheduleError("R026", message[:200], hint="state the first and the last size that there are")
    return None


def unsolved(model: Model) -> Iterator[tuple[str, ScheduleError]]:
    """Yield (name, fault) of every dimension that no input has as a size of its own: a call could not determine it."""
    plain: set[str] = set()
    if model.dims:
        for leaf in input_leaves(model.inputs):
            plain |= {str(size) for size in parse_sized(leaf.text).shape}
    for name in model.dims:
        if name not in plain:
            hint = f"a call reports what {name} is by an input such as f32[{name},256]"
            yield escape(name), ScheduleError("R026", f"no input has the size {name} on its own", hint=hint)
