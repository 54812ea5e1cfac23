"""The contents of the file below the model signature: templates, instances, plans, and the names between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from remate_runtime.flat_step import FlatPage, FlatRecompute, Graph
from remate_runtime.format import Block, Instance, Model, Statement, map_outputs

from ..capture.captured import Captured
from ..partition.hierarchy import BlockSpan
from .plans import page_statements, split
from .templates import Templates, Use


class Folded(msgspec.Struct, frozen=True):
    """A step as a schedule file contains it.

    Attributes:
        blocks: The templates, by name.
        program: The instances, in forward order.
        statements: The plan of the top level.
        model: The signature, with values named by the instances' ids.
        costs: ns of operations, by block and local id.
    """

    blocks: dict[str, Block]
    program: tuple[Instance, ...]
    statements: tuple[Statement, ...]
    model: Model
    costs: dict[str, dict[str, int]]


def write(
    captured: Captured,
    recomputes: tuple[FlatRecompute, ...],
    parts: tuple[BlockSpan, ...],
    menu: Sequence[Sequence[FlatRecompute]] = (),
    pages: Sequence[FlatPage] = (),
) -> Folded:
    """Fold the step along `parts`, which together contain every operation once.

    Args:
        captured: The step.
        recomputes: Its recomputations.
        parts: The top-level parts.
        menu: As in `fold`.
        pages: Pages of the step's values.
    """
    graph, templates = captured.graph, Templates(captured)
    uses = [templates.use(part) for part in parts]
    full = _full_names(graph, parts, templates)
    plans, top = split(graph, recomputes, parts, [use.template for use in uses], templates.ids, menu)
    program = tuple(
        Instance(
            id=part.id,
            block=use.template,
            prefix=None if part.prefix == part.id else part.prefix,
            bindings={name: f"%{full[v]}" for name, v in use.bindings.items()},
            plan=plan,
        )
        for part, use, plan in zip(parts, uses, plans.of_part, strict=True)
    )
    blocks = {
        name: msgspec.structs.replace(block, plans=plans.of_template.get(name, {}))
        for name, block in templates.blocks.items()
    }
    top = (*top, *page_statements(pages, full, templates.ids))
    return Folded(blocks, program, top, _model(captured, full, uses), templates.costs)


def _full_names(graph: Graph, parts: tuple[BlockSpan, ...], templates: Templates) -> list[str]:
    """Return the name of every value at the top level."""
    full = [templates.constants.get(v, value.name) for v, value in enumerate(graph.values)]
    for part in parts:
        for leaf in part.leaves():
            for i in (*range(*leaf.forward), *range(*leaf.backward)):
                op = graph.operations[i]
                for k, v in enumerate(op.writes):
                    if v is not None:
                        full[v] = templates.ids[i] + (f":{k}" if op.multiple else "")
    return full


def _model(captured: Captured, full: list[str], uses: list[Use]) -> Model:
    """Return the signature with renamed outputs, and with the gradients that no block declares."""
    graph = captured.graph
    renamed = {value.name: name for value, name in zip(graph.values, full, strict=True)}
    stated = {parameter for use in uses for parameter in use.gradients}
    left = {graph.values[s].name: f"%{full[g]}" for s, g in graph.gradients if s not in stated}
    outputs = map_outputs(partial(_renamed, renamed=renamed), captured.model.outputs)
    return msgspec.structs.replace(captured.model, outputs=outputs, gradients=left)


def _renamed(leaf: dict[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    """Return a leaf of an output tree, renamed if it is `{"value": "%name"}`."""
    if "value" not in leaf:
        return leaf
    name: str = leaf["value"][1:]
    return {**leaf, "value": f"%{renamed.get(name, name)}"}
