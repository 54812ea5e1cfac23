"""Operations that were added, removed or changed between two schedules, summarized by block."""

from __future__ import annotations

from collections.abc import Callable
from difflib import SequenceMatcher

import msgspec

from remate_runtime.flat_step import Argument, Graph, Op, to_json

from .analysis import Analysis, pattern
from .names import owners

_PAIRS = 1_000_000  # removed times added operations; beyond that, none are matched


class OpChange(msgspec.Struct, frozen=True):
    """change: replaced (by another operator) | renamed | added | removed | changed. count: number of instances.

    old, new: what differs, as text. For a replaced operation they are the operators. For a renamed one, `op` is the old
    name and `new` the new name.
    """

    op: str
    change: str
    count: int
    old: str
    new: str


class BlockChange(msgspec.Struct, frozen=True):
    block: str
    operations: tuple[OpChange, ...]


def graph_changes(old: Analysis, new: Analysis) -> tuple[BlockChange, ...]:
    """Differences between the graphs, except costs."""
    a, b = ({op.id: index for index, op in enumerate(opened.graph.operations)} for opened in (old, new))
    homes = owners(old), owners(new)
    counts: dict[tuple[str, str, str, str, str], int] = {}

    def count(opened: Analysis, index: int, change: str, was: str, now: str) -> None:
        place = homes[opened is new][index]
        local = opened.graph.operations[index].id.removeprefix(place.id + ".")
        key = place.block_name, local, change, was, now
        counts[key] = counts.get(key, 0) + 1

    removed = [index for name, index in a.items() if name not in b]
    added = [index for name, index in b.items() if name not in a]
    successors = _successors(old.graph, removed, new.graph, added)
    predecessors = {b[name]: index for name, index in a.items() if name in b} | {v: k for k, v in successors.items()}
    renamed = _renamed(old.graph, new.graph, successors)
    for index in removed:
        if index not in successors:
            count(old, index, "removed", old.graph.operations[index].op, "")
    for index, op in enumerate(new.graph.operations):
        if index not in predecessors:
            count(new, index, "added", "", op.op)
            continue
        was = old.graph.operations[predecessors[index]]
        if was.op != op.op:
            count(old, predecessors[index], "replaced", was.op, op.op)
        elif was.id != op.id:
            count(old, predecessors[index], "renamed", "", op.id.removeprefix(homes[1][index].id + "."))
        for before, after in _differences(old.graph, was, new.graph, op, homes[1][index].id + ".", renamed):
            count(new, index, "changed", before, after)
    blocks: dict[str, list[OpChange]] = {}
    for (block, local, change, before, after), times in counts.items():
        blocks.setdefault(block, []).append(OpChange(local, change, times, before, after))
    return tuple(BlockChange(block, tuple(changes)) for block, changes in blocks.items())


def _successors(old: Graph, removed: list[int], new: Graph, added: list[int]) -> dict[int, int]:
    """Removed operations and the operations that replace them: in the same order, with results of the same types."""
    if len(removed) * len(added) > _PAIRS:
        return {}
    keys = [
        [(index < graph.backward_start, _types(graph, graph.operations[index])) for index in indices]
        for graph, indices in ((old, removed), (new, added))
    ]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    return {removed[m.a + i]: added[m.b + i] for m in blocks for i in range(m.size)}


def _renamed(old: Graph, new: Graph, successors: dict[int, int]) -> dict[str, str]:
    """Values of replacing operations: new name -> old name."""
    values = [(old.operations[before].writes, new.operations[after].writes) for before, after in successors.items()]
    return {
        new.values[now].name: old.values[was].name
        for before, after in values
        for was, now in zip(before, after, strict=False)
        if was is not None and now is not None
    }


def _differences(
    old: Graph, was: Op, new: Graph, now: Op, inside: str, renamed: dict[str, str]
) -> list[tuple[str, str]]:
    """(before, after) for each part, except the operator, in which two corresponding operations differ. inside: id of
    their instance, with a dot."""
    pairs: list[tuple[str, str]] = []
    types = _types(old, was), _types(new, now)
    if types[0] != types[1]:
        pairs.append(types)
    arguments = _arguments(old, was, ""), _arguments(new, now, "", lambda name: renamed.get(name, name))
    if arguments[0] != arguments[1]:
        pairs.append((_arguments(old, was, inside), _arguments(new, now, inside)))
    return pairs


def _types(graph: Graph, op: Op) -> str:
    return ", ".join("null" if v is None else str(graph.values[v].type) for v in op.writes)


def _arguments(graph: Graph, op: Op, inside: str, rename: Callable[[str], str] = str) -> str:
    """The arguments as text. Names inside `inside` become local and other names become patterns, so that instances
    compare equal."""

    def name(value: int) -> str:
        full = rename(graph.values[value].name)
        return full.removeprefix(inside) if not inside or full.startswith(inside) else pattern(full)

    def text(argument: Argument) -> str:
        return msgspec.json.encode(to_json(argument, name)).decode()

    named = [f"{key}={text(value)}" for key, value in op.kwargs.items()]
    return ", ".join([*(text(a) for a in op.args), *named])
