"""Which arguments an operation may write over, if what they hold dies there: the one place that knows."""

from __future__ import annotations

from ..operators import IN_PLACE
from .graph import Graph, Op, Ref


def overwritable(graph: Graph, op: Op) -> tuple[int, ...]:
    """Positions in `op.args`, in the order in which they are tried, of arguments whose storage the result can take.

    The operator has an in-place form for that position; the argument has the type of the result and all the bytes of a
    storage that the step itself made; and the operation reads that storage through this argument alone. Whether the
    storage dies there is for the caller to know: nothing reads it later, and nobody outside holds it.
    """
    made = op.writes[0] if len(op.writes) == 1 and not op.multiple else None
    if made is None or op.op not in IN_PLACE:
        return ()
    swappable = len(op.args) == 2 and isinstance(op.args[0], Ref) and not op.kwargs
    return tuple(p for p in IN_PLACE[op.op].positions if (p == 0 or swappable) and _takes(graph, op, p, made))


def _takes(graph: Graph, op: Op, position: int, made: int) -> bool:
    argument = op.args[position] if position < len(op.args) else None
    if not isinstance(argument, Ref):
        return False
    values, owner = graph.values, graph.root[argument.value]
    return (
        values[owner].kind == "op"
        and values[argument.value].type == values[made].type
        and graph.nbytes(owner) == graph.nbytes(made)  # no view of a part, and no expanded one
        and sum(graph.root[v] == owner for v in op.reads) == 1
        and sum(a == argument for a in op.args) == 1
    )
