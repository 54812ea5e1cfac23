"""Divides flat recomputations into plans of blocks and recomputations of the top level, with readable names.

Recomputations before the same point run in the order of the file. Outer levels come first: the top level, then the
block's plan. This fits the usual case, in which a block gets its boundary values back and then recomputes its own
operations. If the flat order differs, the top level has all recomputations before that point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remate_runtime.flat_step import FlatPage, FlatRecompute, Graph
from remate_runtime.format import BASELINE, Page, PageMemory, Recompute, Statement, named

from ..partition.hierarchy import BlockSpan
from .plan_names import fresh_name

_Plan = tuple[Statement, ...]


class Plans(msgspec.Struct, frozen=True):
    """Plans of a file.

    Attributes:
        of_part: The plan that each top-level instance names.
        of_template: The plans that each template defines.
    """

    of_part: tuple[str, ...]
    of_template: dict[str, dict[str, _Plan]]


def split(
    graph: Graph,
    recomputes: Sequence[FlatRecompute],
    parts: Sequence[BlockSpan],
    templates: Sequence[str],
    ids: dict[int, str],
    menu: Sequence[Sequence[FlatRecompute]] = (),
) -> tuple[Plans, _Plan]:
    """Divide the recomputations into plans of templates and the remainder for the top level.

    Args:
        graph: The step.
        recomputes: The recomputations.
        parts: The top-level parts.
        templates: The template of each part.
        ids: Full ids of operations.
        menu: Further plans of templates, each as recomputations within one of their instances.
    """
    owner = {i: k for k, part in enumerate(parts) for i in (*range(*part.forward), *range(*part.backward))}
    inner: list[dict[int, list[int]]] = [{} for _ in parts]
    outer: dict[int, list[int]] = {}
    for before, ops in _by_point(recomputes).items():
        home = owner[before]
        first_own = next((k for k, op in enumerate(ops) if owner[op] == home), len(ops))
        if any(owner[op] != home for op in ops[first_own:]):
            first_own = len(ops)
        if ops[first_own:]:
            inner[home][before] = ops[first_own:]
        if ops[:first_own]:
            outer[before] = ops[:first_own]
    of_part, of_template = list[str](), dict[str, dict[str, _Plan]]()
    for part, template, points in zip(parts, templates, inner, strict=True):
        defined = of_template.setdefault(template, {})
        of_part.append(_define(graph, part, _spell(graph, points, part.parts, ids, part.id), defined, ids))
    for offered in menu:
        homes = {owner[i] for recompute in offered for i in (recompute.op, recompute.before)}
        if len(homes) == 1 and not parts[home := homes.pop()].parts:
            part = parts[home]
            plan = _spell(graph, _by_point(offered), part.parts, ids, part.id)
            _define(graph, part, plan, of_template[templates[home]], ids)
    return Plans(tuple(of_part), of_template), _spell(graph, outer, parts, ids, "")


def _by_point(recomputes: Sequence[FlatRecompute]) -> dict[int, list[int]]:
    points: dict[int, list[int]] = {}
    for recompute in recomputes:
        points.setdefault(recompute.before, []).append(recompute.op)
    return dict(sorted(points.items()))


def _define(graph: Graph, part: BlockSpan, plan: _Plan, defined: dict[str, _Plan], ids: dict[int, str]) -> str:
    """Return the name of `plan` in its template, and add the plan if it is new."""
    if not plan:
        return BASELINE
    for name, known in defined.items():
        if known == plan:
            return name
    every = {i: ids[i].removeprefix(part.id + ".") for i in _recomputable(graph, part)}
    paths = {path for entry in plan for path in named(entry)}
    name = fresh_name(plan, list(every.values()), [op for op in every.values() if _within(op, paths)], defined)
    defined[name] = plan
    return name


def _spell(
    graph: Graph, points: dict[int, list[int]], scope: Sequence[BlockSpan], ids: dict[int, str], enclosing: str
) -> _Plan:
    """Return statements. The id of an instance in `scope` names all of its operations, or the start of its backward."""
    instances = [part for top in scope for part in _below(top)]
    begins: dict[int, str] = {}
    starts: dict[int, list[tuple[list[int], str]]] = {}
    for part in instances:
        if part.backward[0] < part.backward[1]:
            begins.setdefault(part.backward[0], part.id)
        if ops := _recomputable(graph, part):
            starts.setdefault(ops[0], []).append((ops, part.id))

    def local(path: str) -> str:
        return path.removeprefix(enclosing + ".") if enclosing else path

    entries: list[Recompute] = []
    for before, ops in points.items():
        names, at = list[str](), 0
        while at < len(ops):
            whole = [w for w in starts.get(ops[at], ()) if ops[at : at + len(w[0])] == w[0]]
            sequence, path = max(whole, key=lambda w: len(w[0]), default=([ops[at]], ids[ops[at]]))
            names.append(local(path))
            at += len(sequence)
        entries.append(Recompute(recompute=tuple(names), before=local(begins.get(before, ids[before]))))
    return tuple(entries)


def _below(part: BlockSpan) -> list[BlockSpan]:
    return [part, *(p for child in part.parts for p in _below(child))]


def _recomputable(graph: Graph, part: BlockSpan) -> list[int]:
    return [i for i in range(*part.forward) if not graph.operations[i].view]


def _within(op: str, named: set[str]) -> bool:
    """Return whether an id, or an instance that contains it, is among `named`."""
    pieces = op.split(".")
    return any(".".join(pieces[:k]) in named for k in range(1, len(pieces) + 1))


def page_statements(pages: Sequence[FlatPage], names: Sequence[str], ids: Mapping[int, str]) -> _Plan:
    """Return statements of the top level: one for all values that leave and return at the same points.

    Args:
        pages: The pages.
        names: Names of values.
        ids: Ids of operations.
    """
    grouped: dict[tuple[PageMemory, str, str, str], list[str]] = {}
    for page in pages:
        out, gone, back = ("" if point is None else ids[point] for point in (page.out, page.gone, page.back))
        grouped.setdefault((page.to, out, gone, back), []).append(names[page.value])
    return tuple(Page(tuple(values), *points) for points, values in grouped.items())
