"""Returns why a step cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterator

from ....flat_step.graph import LIVE, Graph
from ....operators import NAMESPACES, namespace
from ...compiled_step import LinkedStep


def refused(step: LinkedStep) -> str:
    """Return the first reason against replaying a step, as text; "" if there is none.

    A replay repeats the recorded work of the device. What Python or the CPU decides, draws or computes in between would
    not happen again, so that results would be silently wrong.
    """
    return next(_reasons(step), "")


def _reasons(step: LinkedStep) -> Iterator[str]:
    graph = step.linked.graph
    if step.sharded is not None:
        yield "fully_shard has sharded parts of the model, which are gathered anew by each call"
    if step.linked.paged:
        yield "it pages values, and their copies run on streams beside the recorded one"
    if step.ranges is not None:
        yield "record_functions names operations while they are called"
    if graph.calls > 1:
        yield (
            "it is that of a part that is called several times, and one call at a time can have its values in the pool"
        )
    if not step.contract.deliveries:
        yield "no gradient comes of it"
    for value in graph.values:
        if value.kind == LIVE:
            yield f"it reads {value.name!r} of the model at every call, a number that Python hands to operators"
    yield from _on_the_cpu(graph)
    for op in graph.operations:
        if namespace(op.op) not in NAMESPACES:
            yield f"{op.id!r} is {op.op}, an operator of another library, of which nobody knows what it does on the CPU"
    yield from _returned(step)


def _on_the_cpu(graph: Graph) -> Iterator[str]:
    for op in graph.operations:
        if any(value is not None and graph.values[value].type.cpu for value in op.writes):
            yield f"{op.id!r} computes on the CPU"
    for value in graph.values:
        if value.producer < 0 and value.kind != "constant" and value.type.cpu:
            yield f"{value.name!r} is on the CPU, from where operators read it when they are called"


def _returned(step: LinkedStep) -> Iterator[str]:
    """Yield outputs that are the caller's tensors: a copy would be a different tensor."""
    graph = step.linked.graph
    for output in step.contract.outputs:
        owner = graph.values[graph.root[output.value]]
        if owner.producer < 0 and owner.kind != "constant":
            yield f"its output {output.name!r} is {owner.name!r} itself"
