"""Differences between two plans: which operations are kept, recomputed at other points, or follow another plan."""

from __future__ import annotations

from typing import Any

import msgspec

from remate_runtime.flat_step import InstanceSpan
from remate_runtime.link import Computation, PageBack, PageGone

from .analysis import Analysis, pattern
from .names import owners


class OperationDecision(msgspec.Struct, frozen=True):
    """An operation (local id) whose recomputations changed. nbytes: of its outputs; ns: added to the step (negative:
    saved).

    old, new: the points before which it is recomputed; of a page, where its values go and come back.
    """

    op: str
    nbytes: int
    ns: int
    old: tuple[str, ...]
    new: tuple[str, ...]


class InstanceDecision(msgspec.Struct, frozen=True):
    """The same change in some instances of one block. plan: (old, new) if the name of their plan changed.

    again: operations that are recomputed in both plans, but not equally often. paged: operations whose pages differ.
    """

    block: str
    instances: tuple[str, ...]
    plan: tuple[str, str] | None
    kept: tuple[OperationDecision, ...]
    recompute: tuple[OperationDecision, ...]
    moved: tuple[OperationDecision, ...]
    again: tuple[OperationDecision, ...]
    paged: tuple[OperationDecision, ...] = ()


def decisions(old: Analysis, new: Analysis) -> tuple[InstanceDecision, ...]:
    """One InstanceDecision for each kind of change, in program order. Instances that change alike share it."""
    before, after = _points(old), _points(new)
    plans = {place.id: place.instance.plan for place in old.expanded.places}
    known = {op.id for op in old.graph.operations[: old.graph.backward_start]}
    changed: dict[str, list[OperationDecision]] = {}
    leaving = _pages(old), _pages(new)
    moved: dict[str, list[OperationDecision]] = {}
    home = owners(new)
    for index, op in enumerate(new.graph.operations[: new.graph.backward_start]):
        a, b = before.get(op.id, ()), after.get(op.id, ())
        if a != b and op.id in known:
            changed.setdefault(home[index].id, []).append(_choice(new, index, home[index], a, b))
        out, back = leaving[0].get(op.id, ()), leaving[1].get(op.id, ())
        if out != back and op.id in known:
            moved.setdefault(home[index].id, []).append(_choice(new, index, home[index], out, back, 0))
    groups: dict[tuple[Any, ...], list[str]] = {}
    for place in new.expanded.places:
        named = plans.get(place.id, place.instance.plan), place.instance.plan
        choices, paged = tuple(changed.get(place.id, ())), tuple(moved.get(place.id, ()))
        if choices or paged or named[0] != named[1]:
            key = place.block_name, named if named[0] != named[1] else None, choices, paged
            groups.setdefault(key, []).append(place.id)
    return tuple(
        _decision(block, plan, choices, paged, names) for (block, plan, choices, paged), names in groups.items()
    )


def _points(opened: Analysis) -> dict[str, tuple[str, ...]]:
    operations = opened.graph.operations
    points_by_id: dict[str, list[str]] = {}
    for recompute in opened.expanded.recomputes:
        points_by_id.setdefault(operations[recompute.op].id, []).append(operations[recompute.before].id)
    return {op: tuple(points) for op, points in points_by_id.items()}


def _pages(opened: Analysis) -> dict[str, tuple[str, ...]]:
    """For each operation, how its values are paged: where they go, and which operation runs next when they leave and
    when they come back. Pages without effect are left out."""
    trips_by_id: dict[str, list[str]] = {}
    operations, back, at = opened.graph.operations, dict[int, str](), ""
    for event in reversed(opened.linked.events):
        if isinstance(event, Computation):
            at = operations[event.op].id
        elif isinstance(event, PageBack):
            back[event.trip] = at
        elif (
            isinstance(event, PageGone) and 0 <= opened.graph.values[event.value].producer < opened.graph.backward_start
        ):
            name = operations[opened.graph.values[event.value].producer].id
            trips_by_id.setdefault(name, []).append(f"to the {event.to} before {at}, back before {back[event.trip]}")
    return {name: tuple(reversed(trips)) for name, trips in trips_by_id.items()}


def _choice(
    opened: Analysis,
    index: int,
    place: InstanceSpan,
    old: tuple[str, ...],
    new: tuple[str, ...],
    ns: int | None = None,
) -> OperationDecision:
    """ns: time of one run; by default that of the operation."""
    op, graph = opened.graph.operations[index], opened.graph
    nbytes = sum(graph.nbytes(v) for v in op.writes if v is not None and graph.root[v] == v)

    def said(points: tuple[str, ...]) -> tuple[str, ...]:
        inside = place.id + "."
        return tuple(p.removeprefix(inside) if p.startswith(inside) else pattern(p.replace(inside, "")) for p in points)

    return OperationDecision(
        op.id.removeprefix(place.id + "."),
        nbytes,
        (op.ns if ns is None else ns) * (len(new) - len(old)),
        said(old),
        said(new),
    )


def _decision(
    block: str,
    plan: tuple[str, str] | None,
    choices: tuple[OperationDecision, ...],
    paged: tuple[OperationDecision, ...],
    instances: list[str],
) -> InstanceDecision:
    return InstanceDecision(
        block,
        tuple(instances),
        plan,
        kept=tuple(c for c in choices if not c.new),
        recompute=tuple(c for c in choices if not c.old),
        moved=tuple(c for c in choices if c.old and len(c.old) == len(c.new)),
        again=tuple(c for c in choices if c.old and c.new and len(c.old) != len(c.new)),
        paged=paged,
    )
