"""Matches instances and operations of two steps by structure, whatever their names.

Two operations have the same structure if they call the same operator, have values, numbers and words at the same
places, and read results of matching operations. Sizes do not matter: another batch size has the same structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec

from remate_runtime.flat_step import Argument, Graph, InstanceSpan, Number, Op, Ref

from .analysis import Analysis

_LIKE = 0.6  # two blocks are similar if they share at least this part of their operations, by operator


class InstancePair(msgspec.Struct, frozen=True):
    """Matching instances of the old and the new step. ids: full ids of operations, old to new. alike: every operation
    has a counterpart."""

    old: InstanceSpan
    new: InstanceSpan
    ids: dict[str, str]
    alike: bool


def pairs(old: Analysis, new: Analysis) -> list[InstancePair]:
    """Matching innermost instances, in step order: those with equal structure, and in between those with similar
    structure."""
    ours, theirs = _leaves(old), _leaves(new)
    a, b = ([_structure(opened.graph, place) for place in leaves] for opened, leaves in ((old, ours), (new, theirs)))
    matched: list[InstancePair] = []
    for kind, start, stop, other, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind in ("equal", "replace"):
            for opened, two in zip(ours[start:stop], theirs[other:end], strict=kind == "equal"):
                pair = _pair(old.graph, opened, new.graph, two, kind == "equal")
                if pair is not None:
                    matched.append(pair)
    return matched


def _leaves(opened: Analysis) -> list[InstanceSpan]:
    return [place for place in opened.expanded.places if place.leaf]


def _pair(old: Graph, ours: InstanceSpan, new: Graph, theirs: InstanceSpan, alike: bool) -> InstancePair | None:
    if alike:
        numbers = list(zip(_operations(ours), _operations(theirs), strict=True))
    else:
        numbers = [
            *_aligned(old, ours.forward, new, theirs.forward),
            *_aligned(old, ours.backward, new, theirs.backward),
        ]
        if len(numbers) < _LIKE * max(len(_operations(ours)), len(_operations(theirs))):
            return None
    return InstancePair(ours, theirs, {old.operations[i].id: new.operations[k].id for i, k in numbers}, alike)


def _aligned(old: Graph, ours: range, new: Graph, theirs: range) -> Iterator[tuple[int, int]]:
    """Pairs of operations with the same operator, in order. A replaced run of the same length (another activation) is
    paired one to one."""
    a, b = ([graph.operations[i].op for i in span] for graph, span in ((old, ours), (new, theirs)))
    for kind, start, stop, other, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and stop - start == end - other):
            for left, right in zip(ours[start:stop], theirs[other:end], strict=True):
                if old.operations[left].view == new.operations[right].view:
                    yield left, right


def _operations(place: InstanceSpan) -> Sequence[int]:
    return (*place.forward, *place.backward)


def _structure(graph: Graph, place: InstanceSpan) -> tuple[Any, ...]:
    number: dict[int, int] = {}
    rows = [_row(graph.operations[i], number) for i in _operations(place)]
    return (len(place.forward), *rows)


def _row(op: Op, number: dict[int, int]) -> tuple[Any, ...]:
    named = tuple((key, _argument(op.kwargs[key], number)) for key in sorted(op.kwargs))
    arguments = tuple(_argument(argument, number) for argument in op.args)
    writes = tuple(v is not None and number.setdefault(v, len(number)) for v in op.writes)
    return op.op, arguments, named, writes


def _argument(argument: Argument | list[Argument], number: dict[int, int]) -> Any:
    if isinstance(argument, Ref):
        return "value", number.setdefault(argument.value, len(number))
    if isinstance(argument, tuple | list):
        inner = tuple(_argument(item, number) for item in argument)
        return "sizes" if all(item == "number" for item in inner) else inner
    if isinstance(argument, dict):
        return tuple(sorted(argument))
    return "number" if isinstance(argument, int | float | Number) and not isinstance(argument, bool) else argument
