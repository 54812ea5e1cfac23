"""The arguments that an operation may write over, if their values are not needed afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..operators import IN_PLACE
from .graph import Graph, Op, Ref


class Overwritable(NamedTuple):
    """An argument that an operation may write over at some sizes.

    Attributes:
        position: Its position in the operation's arguments.
        taken: The argument's value.
        result: The operation's result.
    """

    position: int
    taken: int
    result: int


def overwritable(graph: Graph, op: Op) -> tuple[int, ...]:
    """Return positions in `op.args` of arguments whose storage the result can take, in the order to try them.

    The operator has an in-place form for that position; the argument has the type of the result and spans a storage
    that the step itself allocated; and the operation reads that storage through this argument only. The caller must
    know that nothing reads the storage later, and that nobody outside uses it.
    """
    return tuple(candidate.position for candidate in _candidates(graph, op) if same_storage(graph, candidate))


def candidates(graph: Graph) -> tuple[Overwritable, ...]:
    """Return the candidates of all operations, which do not depend on sizes."""
    return tuple(candidate for op in graph.operations for candidate in _candidates(graph, op))


def same_storage(graph: Graph, candidate: Overwritable) -> bool:
    """Return whether the argument has the type of the result and spans its storage."""
    values, nbytes = graph.values, graph.storage_bytes
    taken, result = values[candidate.taken].type, values[candidate.result].type
    # The bytes differ for a view of a part, and for an expanded one.
    return (taken is result or taken == result) and nbytes[candidate.taken] == nbytes[candidate.result]


def _candidates(graph: Graph, op: Op) -> Sequence[Overwritable]:
    result = op.writes[0] if len(op.writes) == 1 and not op.multiple else None
    if result is None or op.op not in IN_PLACE:
        return ()
    swappable = len(op.args) == 2 and isinstance(op.args[0], Ref) and not op.kwargs
    return [
        Overwritable(position, argument.value, result)
        for position in IN_PLACE[op.op].positions
        if (position == 0 or swappable) and position < len(op.args)
        if isinstance(argument := op.args[position], Ref) and _read_once(graph, op, argument)
    ]


def _read_once(graph: Graph, op: Op, argument: Ref) -> bool:
    """Return whether the operation reads a storage, which the step allocated, through this argument only."""
    root = graph.root
    owner = root[argument.value]
    return (
        graph.values[owner].kind == "op"
        and sum(root[v] == owner for v in op.reads) == 1
        and sum(a == argument for a in op.args) == 1
    )
