"""The arguments that an operation may write over, if their values are not needed afterwards."""

from __future__ import annotations

from ..operators import IN_PLACE
from .graph import Graph, Op, Ref


def overwritable(graph: Graph, op: Op) -> tuple[int, ...]:
    """Return positions in `op.args` of arguments whose storage the result can take, in the order to try them.

    The operator has an in-place form for that position; the argument has the type of the result and spans a storage
    that the step itself allocated; and the operation reads that storage through this argument only. The caller must
    know that nothing reads the storage later, and that nobody outside uses it.
    """
    result = op.writes[0] if len(op.writes) == 1 and not op.multiple else None
    if result is None or op.op not in IN_PLACE:
        return ()
    swappable = len(op.args) == 2 and isinstance(op.args[0], Ref) and not op.kwargs
    return tuple(p for p in IN_PLACE[op.op].positions if (p == 0 or swappable) and _takes(graph, op, p, result))


def _takes(graph: Graph, op: Op, position: int, result: int) -> bool:
    argument = op.args[position] if position < len(op.args) else None
    if not isinstance(argument, Ref):
        return False
    values, owner, nbytes = graph.values, graph.root[argument.value], graph.storage_bytes
    taken, given = values[argument.value].type, values[result].type
    return (
        values[owner].kind == "op"
        and (taken is given or taken == given)
        and nbytes[owner] == nbytes[result]  # no view of a part, and no expanded one
        and sum(graph.root[v] == owner for v in op.reads) == 1
        and sum(a == argument for a in op.args) == 1
    )
