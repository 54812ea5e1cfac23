"""Steps whose parameters FSDP2 shards, as strategies and bounds see them: what FSDP2 uses counts as workspace."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from remate_runtime.flat_step import Graph, Value
from remate_runtime.format import TensorType
from remate_runtime.link import RecomputeRun, Run, groups_of, link, simulate

from ..partition.canonical import form
from ..partition.hierarchy import BlockSpan


def with_workspaces(graph: Graph, leaves: Sequence[BlockSpan] = ()) -> Graph:
    """Return the step with the workspace that FSDP2 takes without recomputation; a step without shards unchanged.

    A forward operation may run again in backward, where FSDP2 holds more, so it gets the larger of the two: that of
    the first operation of backward that reads parameters of the same group. Leaves of equal form get equal workspaces,
    the largest of each operation: strategies solve them once. The reduced gradients grow during backward, so they are
    values, as gradients of inputs are. Only the search is affected, for schedules are judged on the step itself.
    """
    if graph.sharded is None:
        return graph
    bare = _with_reduced(graph)
    linked = link(graph)
    during, plain = simulate(linked).during, simulate(link(bare)).during
    extra = [0] * len(graph.operations)
    for at, event in enumerate(linked.events):
        if isinstance(event, Run | RecomputeRun):
            extra[event.op] = max(0, during[at] - plain[at])
    groups = _read_groups(graph)
    in_backward: dict[int, int] = {}
    for index in range(graph.backward_start, len(extra)):
        for group in groups[index]:
            in_backward.setdefault(group, extra[index])
    last = 0
    for index in range(graph.backward_start):
        last = next(iter(groups[index]), last)
        extra[index] = max(extra[index], in_backward.get(last, 0))
    return _with(bare, _equal_in_leaves(graph, leaves, extra))


def _equal_in_leaves(graph: Graph, leaves: Sequence[BlockSpan], extra: list[int]) -> list[int]:
    """Return workspaces that are equal for operations at the same place of leaves of equal form."""
    alike: dict[bytes, list[tuple[int, ...]]] = {}
    for leaf in leaves:
        shape = form(graph, leaf)
        alike.setdefault(shape.key, []).append(shape.operations)
    for members in alike.values():
        same: tuple[int, ...]
        for same in zip(*members, strict=True):
            largest = max(extra[op] for op in same)
            for op in same:
                extra[op] = largest
    return extra


def guaranteed(graph: Graph) -> Graph:
    """Return the step with the workspace that FSDP2 takes in every schedule: the parameters that an operation reads."""
    assert graph.sharded is not None
    known, read = groups_of(graph, graph.sharded).groups, _read_groups(graph)
    kept = {number for number, group in enumerate(known) if group.kept}
    always = [0] if 0 in kept else []
    needs = [{*groups, *always} for groups in read]
    return _with(_without(graph), [sum(known[group].whole for group in groups) for groups in needs])


def _read_groups(graph: Graph) -> list[tuple[int, ...]]:
    """Return by operation the groups whose parameters it reads."""
    assert graph.sharded is not None
    of = groups_of(graph, graph.sharded).of
    read = [[of[graph.root[v]] for v in op.reads if graph.root[v] in of] for op in graph.operations]
    return [tuple(dict.fromkeys(groups)) for groups in read]


def _with_reduced(graph: Graph) -> Graph:
    """Return the step without shards, with the reduced gradients of each group as values that last to its end.

    The operation that computes the last gradient of a group produces them, as the gradient of an input that nothing
    reads.
    """
    assert graph.sharded is not None
    values, operations, gradients = list(graph.values), list(graph.operations), list(graph.gradients)
    known = groups_of(graph, graph.sharded)
    last: dict[int, int] = {}  # the operation, by group
    for source, gradient in graph.gradients:
        if source in known.of:
            producer = values[graph.root[gradient]].producer
            last[known.of[source]] = max(producer, last.get(known.of[source], producer))
    for group, op in last.items():
        about = known.groups[group]
        if about.shards and op >= graph.backward_start:
            gradients.append((len(values), len(values) + 1))
            operations[op] = replace(operations[op], writes=(*operations[op].writes, len(values) + 1))
            name, kind = f"{about.path}~reduced", TensorType("u8", (about.shards,))
            values += [Value(name, kind, "input"), Value(f"{name}.grad", kind, "op", op)]
    bare = _without(graph)
    return replace(
        bare,
        values=tuple(values),
        operations=tuple(operations),
        gradients=tuple(gradients),
        root=(*graph.root, *range(len(graph.root), len(values))),
    )


def _without(graph: Graph) -> Graph:
    """Return the step with whole parameters, whose gradients are freed when they are delivered."""
    return replace(graph, sharded=None, delivered="accumulated" if graph.delivered == "retained" else graph.delivered)


def _with(graph: Graph, extra: Sequence[int]) -> Graph:
    operations = (replace(op, workspace=op.workspace + more) for op, more in zip(graph.operations, extra, strict=True))
    return replace(graph, operations=tuple(operations))
