"""Compares captures of a step at different values of live numbers: the numbers that differ, and other
differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from remate_runtime.flat_step import Argument, Graph, Op

from ..capture.captured import Captured

At = tuple[int, tuple[Any, ...]]  # an operation, and the path through its arguments: ("args", 1)


class Leak(msgspec.Struct, frozen=True):
    """Another difference as text, with module and source of the operation, if there is one."""

    what: str
    module: str = ""
    source: str = ""


def leak(left: Captured, right: Captured) -> Leak | None:
    """Return how the second step differs from the first except in floats among arguments; None if it does not."""
    first, second = left.graph, right.graph
    for at, (a, b) in enumerate(zip(first.operations, second.operations, strict=False)):
        if what := _differs(first, a, second, b):
            return Leak(what, left.modules[at], a.source)
    if len(first.operations) != len(second.operations):
        graph, captured = max((first, left), (second, right), key=lambda pair: len(pair[0].operations))
        at = min(len(first.operations), len(second.operations))
        op = graph.operations[at]
        return Leak(f"{op.op} is there at one of them only", captured.modules[at], op.source)
    for at, (a, b) in enumerate(zip(first.values, second.values, strict=False)):
        if (a.kind, a.type) == (b.kind, b.type) and repr(a.data) != repr(b.data):
            reader = next((i for i, op in enumerate(first.operations) if at in op.reads), None)
            module, source = ("", "") if reader is None else (left.modules[reader], first.operations[reader].source)
            what = "a tensor is made from it in Python (torch.tensor and the like), which a file holds as a constant"
            return Leak(what, module, source)
    ends = ("values", "backward_start", "outputs", "gradients", "updates", "root")
    if any(repr(getattr(first, name)) != repr(getattr(second, name)) for name in ends):
        return Leak("what enters or leaves the step is another")
    if repr(left.model.outputs) != repr(right.model.outputs):
        return Leak("forward returns it, or what is computed from it, as a Python number")
    return None


def floats(graph: Graph) -> Iterator[tuple[At, float]]:
    """Yield all numbers in arguments of operations that can be floats, with their places."""
    for at, op in enumerate(graph.operations):
        for where, value in _leaves({"args": op.args, "kwargs": op.kwargs}, ()):
            if type(value) in (int, float):
                yield (at, where), value


def _differs(left: Graph, first: Op, right: Graph, second: Op) -> str:
    if first.op != second.op:
        return f"{first.op} at one of them, {second.op} at the other"
    parts = ("id", "reads", "writes", "view", "random", "multiple")
    if any(getattr(first, name) != getattr(second, name) for name in parts):
        return f"{first.op} reads other values"
    if _bare((first.args, first.kwargs)) != _bare((second.args, second.kwargs)):
        return f"{first.op} has other arguments"
    pairs = [(left.values[v].type, right.values[v].type) for v in first.writes if v is not None]
    return "" if all(a == b for a, b in pairs) else f"{first.op} makes tensors of another size"


def _leaves(value: Argument, where: tuple[object, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*where, key))
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield from _leaves(item, (*where, at))
    else:
        yield where, value


def _bare(value: Argument) -> Any:
    """Return an argument without its numbers."""
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()}
    return float if type(value) in (int, float) else value
