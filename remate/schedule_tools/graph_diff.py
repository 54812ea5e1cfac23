"""Operations that came, went or changed between two schedules, summarised by block."""

from __future__ import annotations

from typing import Any

import msgspec

from remate_runtime.flat_step import Graph, Op, to_json

from .analysis import Analysis, pattern
from .names import owners


class OpChange(msgspec.Struct, frozen=True):
    """change: added | removed | changed. count: in how many instances. old, new: what differs, as text."""

    op: str
    change: str
    count: int
    old: str
    new: str


class BlockChange(msgspec.Struct, frozen=True):
    block: str
    operations: tuple[OpChange, ...]


def graph_changes(old: Analysis, new: Analysis) -> tuple[BlockChange, ...]:
    """What differs but for costs."""
    a, b = ({op.id: index for index, op in enumerate(opened.graph.operations)} for opened in (old, new))
    homes = owners(old), owners(new)
    counts: dict[tuple[str, str, str, str, str], int] = {}

    def count(opened: Analysis, index: int, change: str, was: str, now: str) -> None:
        place = homes[opened is new][index]
        local = opened.graph.operations[index].id.removeprefix(place.id + ".")
        key = place.block_name, local, change, was, now
        counts[key] = counts.get(key, 0) + 1

    for name, index in a.items():
        if name not in b:
            count(old, index, "removed", old.graph.operations[index].op, "")
    for name, index in b.items():
        op = new.graph.operations[index]
        if name not in a:
            count(new, index, "added", "", op.op)
            continue
        was = old.graph.operations[a[name]]
        for before, after in _differences(old.graph, was, new.graph, op, homes[1][index].id + "."):
            count(new, index, "changed", before, after)
    blocks: dict[str, list[OpChange]] = {}
    for (block, local, change, before, after), times in counts.items():
        blocks.setdefault(block, []).append(OpChange(local, change, times, before, after))
    return tuple(BlockChange(block, tuple(changes)) for block, changes in blocks.items())


def _differences(old: Graph, was: Op, new: Graph, now: Op, inside: str) -> list[tuple[str, str]]:
    """(before, after) for each part in which two operations of one id differ. inside: id of their instance, with a
    dot."""
    pairs = []
    if was.op != now.op:
        pairs.append((was.op, now.op))
    types = _types(old, was), _types(new, now)
    if types[0] != types[1]:
        pairs.append(types)
    if _arguments(old, was, "") != _arguments(new, now, ""):
        pairs.append((_arguments(old, was, inside), _arguments(new, now, inside)))
    return pairs


def _types(graph: Graph, op: Op) -> str:
    return ", ".join("null" if v is None else str(graph.values[v].type) for v in op.writes)


def _arguments(graph: Graph, op: Op, inside: str) -> str:
    """As text; with `inside`, names in it are local, and those elsewhere patterns, so that instances are alike."""

    def name(value: int) -> str:
        full = graph.values[value].name
        return full.removeprefix(inside) if not inside or full.startswith(inside) else pattern(full)

    def text(argument: Any) -> str:
        return msgspec.json.encode(to_json(argument, name)).decode()

    named = [f"{key}={text(value)}" for key, value in op.kwargs.items()]
    return ", ".join([*(text(a) for a in op.args), *named])
