"""Compares steps captured at several sizes: their common structure, and the numbers that differ.

A step consists of its structure, which must be the same at every size, and its numbers: sizes and strides of values,
numbers among arguments. The numbers of one place at all sizes are a *row*, for which an expression is fitted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from remate_runtime.flat_step import Argument, Graph, Number, Op, numbers_in
from remate_runtime.format import (
    TensorType,
    attributes_of,
    is_object,
    is_tuple,
    literals_in,
    plain_attributes,
    returned_by,
)

from ..capture.captured import Captured

_APART = (
    "a live attribute and a size in one number: compute with them one after the other (x * self.alpha / x.shape[1]), "
    "leave the size fixed, or leave the attribute out of live="
)
Row = tuple[int | float | None, ...]  # None: a stride that says nothing, for the size there is 1


class RowOrigin(msgspec.Struct, frozen=True):
    """The origin of a row, for messages.

    Attributes:
        what: `shape of …`.
        source: Line of the user's code.
    """

    what: str
    source: str


class StructuralDifference(msgspec.Struct, frozen=True):
    """The first structural difference of two steps.

    Attributes:
        what: The difference as text.
        module: Module of the operation, if there is one.
        source: Line of the operation, if there is one.
        more: Additional operations of the second step, by operator.
        hint: A remedy, if known.
        everywhere: Steps at other sizes differ in the same way.
    """

    what: str
    module: str
    source: str
    more: dict[str, int]
    hint: str = ""
    everywhere: bool = False


def difference(planned: Captured, other: Captured) -> StructuralDifference | None:
    """Return the first structural difference of two steps, or None."""
    left, right, modules = planned.graph, other.graph, planned.modules
    had, has = Counter(op.op for op in left.operations), Counter(op.op for op in right.operations)
    more = {name: has[name] - had[name] for name in sorted(had | has) if has[name] != had[name]}
    for at, (first, second) in enumerate(zip(left.operations, right.operations, strict=False)):
        what = _operation_differs(left, first, right, second)
        if what:
            mixed = first.op == second.op and numbers_in(first) and numbers_in(second)
            return StructuralDifference(what, modules[at], first.source, more, _APART if mixed else "", bool(mixed))
    if more:
        longer = max((left, right), key=lambda graph: len(graph.operations))
        op = longer.operations[min(len(left.operations), len(right.operations))]
        return StructuralDifference(f"{op.op} is in one of them only", "", op.source, more)
    for first, second, at in zip(left.values, right.values, range(len(left.values)), strict=False):
        if first.kind == second.kind == "constant" and first.data != second.data:
            reader = next((op for op in left.operations if at in op.reads), None)
            where = "" if reader is None else reader.source
            what = "a tensor that forward builds from Python numbers differs"
            return StructuralDifference(what, "", where, more, everywhere=True)
    ends = ("backward_start", "outputs", "gradients", "updates", "root")
    ends_differ = any(getattr(left, name) != getattr(right, name) for name in ends)
    sources_differ = [_source(v) for v in left.values] != [_source(v) for v in right.values]
    if ends_differ or sources_differ or _types(left) != _types(right):
        return StructuralDifference("inputs or outputs of the step differ", "", "", more)
    return _returned_difference(_results(planned), _results(other))


def _returned_difference(left: tuple[Any, ...], right: tuple[Any, ...]) -> StructuralDifference | None:
    """Return the difference between the Python values that forward returns, other than numbers, or None."""
    if bare(left) == bare(right):
        return None
    pairs = zip(_literals(left), _literals(right), strict=False)
    first, second = next(((a, b) for a, b in pairs if bare(a) != bare(b)), (None, None))
    if isinstance(first, str) and isinstance(second, str):
        what = f"forward returns the text {first!r} at one of them and {second!r} at the other"
        return StructuralDifference(what, "", "", {}, "return it as a number or a tensor", everywhere=True)
    if (first, second) == (None, None):
        return StructuralDifference("forward returns containers of different lengths", "", "", {})
    return StructuralDifference(f"forward returns {first!r} at one of them and {second!r} at the other", "", "", {})


def _results(captured: Captured) -> tuple[Any, ...]:
    """Return the trees of forward's result, and of the attributes with tensors."""
    outputs = captured.model.outputs
    plain = plain_attributes(outputs)
    return returned_by(outputs), *(tree for path, tree in attributes_of(outputs).items() if path not in plain)


def _literals(trees: Sequence[Any]) -> list[Any]:
    return [literal for tree in trees for literal in literals_in(tree)]


def _operation_differs(left: Graph, first: Op, right: Graph, second: Op) -> str:
    if first.op != second.op:
        return f"{first.op} at one of them, {second.op} at the other"
    parts = ("id", "reads", "writes", "view", "random", "multiple")
    if any(getattr(first, name) != getattr(second, name) for name in parts):
        return f"{first.op} reads different values"
    if bare((first.args, first.kwargs)) != bare((second.args, second.kwargs)):
        numbers = [
            " and ".join(_spelled(graph, n) for n in numbers_in(op)) for graph, op in ((left, first), (right, second))
        ]
        if all(numbers):
            return f"{first.op} takes {numbers[0]} at one of them and {numbers[1]} at the other"
        return f"{first.op} has different arguments"
    types = [(_type(left.values[v].type), _type(right.values[v].type)) for v in first.writes if v is not None]
    return "" if all(a == b for a, b in types) else f"{first.op} returns tensors of a different rank or type"


def _spelled(graph: Graph, number: Number) -> str:
    """Return a number that follows from live attributes, with their names."""
    names = [graph.values[value].name for value in number.values]
    return re.sub(r"%([0-9]+)", lambda match: names[int(match[1])], number.text)


def _source(value: Any) -> Any:
    return value.name, value.kind, value.producer, value.data


def _types(graph: Graph) -> list[Any]:
    return [_type(value.type) for value in graph.values]


def _type(kind: TensorType) -> Any:
    return kind.dtype, len(kind.shape), kind.cpu


def bare(value: Argument) -> Any:
    """Return an argument without its numbers."""
    if isinstance(value, tuple | list):
        return tuple(map(bare, value))
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items()}
    if type(value) in (int, float):
        return type(value)
    return value


def rows(steps: Sequence[Captured]) -> dict[Row, RowOrigin]:
    """Return the distinct rows of steps of one structure that vary with the size, each with its first place."""
    origins: dict[Row, RowOrigin] = {}
    graphs = [step.graph for step in steps]
    first = graphs[0]
    for at, value in enumerate(first.values):
        kinds = [graph.values[at].type for graph in graphs]
        source = first.operations[value.producer].source if value.producer >= 0 else ""
        for row in type_rows(kinds):
            origins.setdefault(row, RowOrigin(f"the shape of {value.name}", source))
    for at, op in enumerate(first.operations):
        every = [graph.operations[at] for graph in graphs]
        numbers = [numbers_of((each.args, each.kwargs)) for each in every]
        for row in zip(*numbers, strict=True):
            origins.setdefault(row, RowOrigin(f"a number among the arguments of {op.op}", op.source))
    for row in zip(*(numbers_of(tuple(_literals(_results(step)))) for step in steps), strict=True):
        origins.setdefault(row, RowOrigin("a number that forward returns", ""))
    return {row: place for row, place in origins.items() if differs(row)}


def shapes(graphs: Sequence[Graph]) -> set[tuple[int, ...]]:
    """Return the sizes that tensors have in all of the steps."""
    every = zip(*(graph.values for graph in graphs), strict=True)
    return {row for values in every for row in zip(*(value.type.shape for value in values), strict=True)}


def where_strides_tell(graphs: Sequence[Graph]) -> dict[Row, set[tuple[int, ...]]]:
    """Return rows of strides that are undefined at some size, each with the sizes of the axis.

    A stride is defined if the size of its axis is not 1.
    """
    axes_of: dict[Row, set[tuple[int, ...]]] = {}
    for values in zip(*(graph.values for graph in graphs), strict=True):
        kinds = [value.type for value in values]
        if any(1 in kind.shape for kind in kinds) and any(kind.strides is not None for kind in kinds):
            axes = zip(*(kind.shape for kind in kinds), strict=True)
            for axis, row in zip(axes, zip(*map(telling_strides, kinds), strict=True), strict=True):
                if None in row:
                    axes_of.setdefault(row, set()).add(axis)
    return axes_of


def differs(row: Sequence[Any]) -> bool:
    return len({item for item in row if item is not None}) > 1


def type_rows(kinds: Sequence[TensorType]) -> list[Row]:
    """Return the rows of a type: its sizes, then its strides, if it has any at some size."""
    result: list[Row] = list(zip(*(kind.shape for kind in kinds), strict=True))
    if any(kind.strides is not None for kind in kinds):
        result += zip(*(telling_strides(kind) for kind in kinds), strict=True)
    return result


def telling_strides(kind: TensorType) -> tuple[int | None, ...]:
    """Return the strides of a type, None where the size is 1."""
    return tuple(None if size == 1 else n for size, n in zip(kind.shape, strides_of(kind), strict=True))


def strides_of(kind: TensorType) -> tuple[int, ...]:
    """Return the strides of a type, also if it is contiguous."""
    if kind.strides is not None:
        return kind.strides
    strides, step = list[int](), 1
    for size in reversed(kind.shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def numbers_of(value: Any) -> list[int | float]:
    if is_tuple(value):
        return [number for item in value for number in numbers_of(item)]
    if is_object(value):
        return [number for item in value.values() for number in numbers_of(item)]
    return [value] if type(value) in (int, float) else []
