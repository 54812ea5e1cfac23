"""Writes a leaf of the hierarchy as a block of the file: local names, arguments as JSON, declarations."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remate_runtime.flat_step import LIVE, Graph, Op, to_json
from remate_runtime.format import Block, Constant, Operation

from ..capture.captured import Captured
from ..partition.canonical import CanonicalForm
from ..partition.hierarchy import BlockSpan
from .names import NameAllocator, joined, packet, relative


class Written(msgspec.Struct, frozen=True):
    """A written leaf.

    Attributes:
        block: The template, without plans.
        ids: Local id of each operation, in the order of the form's operations.
        names: Local name of each source, in the order of the form's sources.
        values: Local name of each value.
        costs: ns of each operation that takes time, by local id.
    """

    block: Block
    ids: tuple[str, ...]
    names: tuple[str, ...]
    values: dict[int, str]
    costs: dict[str, int]


def write_leaf(captured: Captured, part: BlockSpan, form: CanonicalForm) -> Written:
    """Return the block of a leaf, with names relative to its prefix."""
    graph, allocator = captured.graph, NameAllocator()
    names = _source_names(graph, part, form, allocator)
    values = dict(zip(form.sources, names, strict=True))
    ids: list[str] = []
    for i in form.operations:
        op, module = graph.operations[i], relative(captured.modules[i], part.prefix)
        local = allocator.take(joined(module, "grad" if i >= graph.backward_start else "", packet(op.op)))
        ids.append(local)
        values.update(_outputs(op, local))
    local_of = dict(zip(form.operations, ids, strict=True))

    def operations(span: tuple[int, int]) -> tuple[Operation, ...]:
        return tuple(_operation(graph, graph.operations[i], local_of[i], values.__getitem__) for i in range(*span))

    kinds = _declarations(graph, form, names)
    block = Block(
        inputs=kinds["value"],
        parameters=kinds["parameter"],
        buffers=kinds["buffer"],
        live=tuple(kinds[LIVE]),
        constants={
            values[v]: Constant(type=str(graph.values[v].type), data=graph.values[v].data or ())
            for v in form.sources
            if graph.values[v].kind == "constant"
        },
        forward=operations(part.forward),
        backward=operations(part.backward),
        gradients={values[p]: f"%{values[g]}" for p, g in form.gradients},
        updates={values[b]: f"%{values[v]}" for b, v in form.updates},
    )
    costs = {local_of[i]: graph.operations[i].ns for i in form.operations if graph.operations[i].ns}
    return Written(block, tuple(ids), names, values, costs)


def _outputs(op: Op, name: str) -> dict[int, str]:
    return {v: f"{name}:{k}" if op.multiple else name for k, v in enumerate(op.writes) if v is not None}


def _operation(graph: Graph, op: Op, name: str, name_of: Callable[[int], str]) -> Operation:
    types = tuple(None if v is None else str(graph.values[v].type) for v in op.writes)
    out = types if op.multiple else types[0]
    assert out is not None, f"{op.id} ({op.op}) has no output"
    return Operation(
        id=name,
        op=op.op,
        args=tuple(to_json(a, name_of) for a in op.args),
        kwargs={k: to_json(v, name_of) for k, v in op.kwargs.items()},
        out=out,
        workspace=op.workspace,
        source=op.source,
    )


def _source_names(graph: Graph, part: BlockSpan, form: CanonicalForm, allocator: NameAllocator) -> tuple[str, ...]:
    """Return local names of the sources, in the order of the form.

    Parameters, buffers and live attributes have their name relative to the prefix. Other values are named by role: `x`
    in the forward, `grad` in the backward. Parameters come first, because they must not be renamed.
    """
    names: dict[int, str] = {}
    for v in form.sources:
        if graph.values[v].kind in ("parameter", "buffer", LIVE):
            names[v] = allocator.take(relative(graph.values[v].name, part.prefix))
    for v in form.sources:
        if v not in names:
            names[v] = allocator.take(_role(graph, v))
    return tuple(names[v] for v in form.sources)


def _role(graph: Graph, value: int) -> str:
    about = graph.values[value]
    if about.kind != "op":
        return about.name
    return "grad" if about.producer >= graph.backward_start else "x"


def _declarations(graph: Graph, form: CanonicalForm, names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    declared: dict[str, dict[str, str]] = {"parameter": {}, "buffer": {}, LIVE: {}, "value": {}}
    for v, name in zip(form.sources, names, strict=True):
        kind = graph.values[v].kind
        if kind != "constant":
            declared[kind if kind in declared else "value"][name] = str(graph.values[v].type)
    return declared
