"""What changed between two schedules: decisions first, then plans, graph, model and solve record, and the effect."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.format import Schedule, fingerprint

from .analysis import Analysis
from .decisions import InstanceDecision, decisions
from .figures import FIGURES, computed, gap
from .graph_diff import BlockChange, graph_changes
from .notes import notes_of


class PlanChange(msgspec.Struct, frozen=True):
    """change: added | removed | changed. entries: recompute entries of the plan, before and after."""

    block: str
    plan: str
    change: str
    entries: tuple[int, int]


class FieldChange(msgspec.Struct, frozen=True):
    """A field with what it was and what it is; null where there is none."""

    field: str
    old: Any
    new: Any


class CostChange(msgspec.Struct, frozen=True):
    """profile: whether the costs are of another one. operations: of blocks in both files, whose time or workspace
    differs. baseline: ns of the step without recomputation, before and after."""

    profile: bool
    operations: int
    baseline: tuple[int, int]


class Effect(msgspec.Struct, frozen=True):
    """Each a pair (before, after), computed anew: bytes, ns, how many, bytes; gap: of the baseline time (null: not
    known, or over the budget); paged: bytes that leave; stall: ns that the step waits for them, part of its time."""

    peak: tuple[int, int]
    time: tuple[int, int]
    recomputes: tuple[int, int]
    budget: tuple[int, int]
    gap: tuple[float | None, float | None]
    paged: tuple[int, int] = (0, 0)
    stall: tuple[int, int] = (0, 0)


class ScheduleDiff(msgspec.Struct, frozen=True):
    """All differences. `other`: fields that are for people (names, notes, sources), or that say nothing on its own."""

    equal: bool
    decisions: tuple[InstanceDecision, ...]
    plans: tuple[PlanChange, ...]
    toplevel: tuple[int, int] | None
    instances: tuple[FieldChange, ...]
    graph: tuple[BlockChange, ...]
    costs: CostChange | None
    model: tuple[FieldChange, ...]
    solve: tuple[FieldChange, ...]
    other: tuple[str, ...]
    effect: Effect


def compare(old: Analysis, new: Analysis) -> ScheduleDiff:
    """What changed from `old` to `new`."""
    a, b = old.schedule, new.schedule
    same_step = fingerprint(a) == fingerprint(b)
    changes = ScheduleDiff(
        equal=a == b,
        decisions=decisions(old, new),
        plans=_plans(a, b),
        toplevel=None if a.statements == b.statements else (len(a.statements), len(b.statements)),
        instances=() if same_step else _instances(old, new),
        graph=() if same_step else graph_changes(old, new),
        costs=_costs(old, new),
        model=_model(a, b),
        solve=_solve(old, new),
        other=_other(a, b),
        effect=_effect(old, new),
    )
    parts = (changes.decisions, changes.plans, changes.toplevel, changes.instances, changes.graph, changes.model)
    if changes.equal or any(parts) or changes.costs or changes.solve or changes.other:
        return changes
    return replace(changes, other=("the blocks are written differently, the step is the same",))


def _plans(a: Schedule, b: Schedule) -> tuple[PlanChange, ...]:
    changes: list[PlanChange] = []
    for name, block in b.blocks.items():
        before = a.blocks[name].plans if name in a.blocks else {}
        for plan in dict.fromkeys((*before, *block.plans)):
            old, new = before.get(plan), block.plans.get(plan)
            if old != new:
                change = "added" if old is None else "removed" if new is None else "changed"
                changes.append(PlanChange(name, plan, change, (len(old or ()), len(new or ()))))
    return tuple(changes)


def _instances(old: Analysis, new: Analysis) -> tuple[FieldChange, ...]:
    """Instances that came, went, or are of another block."""
    a, b = ({p.id: p.block_name for p in opened.expanded.places} for opened in (old, new))
    return tuple(FieldChange(i, a.get(i), b.get(i)) for i in dict.fromkeys((*a, *b)) if a.get(i) != b.get(i))


def _true_figures(old: Analysis, new: Analysis) -> tuple[str, ...]:
    """Those that both files state as they are: the effect says them."""
    figures = [(opened.schedule.solve, computed(opened)) for opened in (old, new)]
    return tuple(name for name in FIGURES if all(getattr(solve, name) == true[name] for solve, true in figures))


def _solve(old: Analysis, new: Analysis) -> tuple[FieldChange, ...]:
    """Of a record in it, such as `compiled`, each field by its path."""
    a, b = old.schedule.solve, new.schedule.solve
    compiled: list[dict[str, Any]] = [msgspec.to_builtins(solve.compiled) or {} for solve in (a, b)]
    fields = _fields(a, b, skip=("note", "profile", "compiled", *_true_figures(old, new)))
    return (*fields, *_entries("compiled", *compiled))


def _costs(old: Analysis, new: Analysis) -> CostChange | None:
    ours, theirs = _costs_of(old.schedule), _costs_of(new.schedule)
    differ = sum(ours[key] != theirs[key] for key in ours.keys() & theirs.keys())
    profile = old.schedule.solve.profile != new.schedule.solve.profile
    if not differ and not profile:
        return None
    return CostChange(profile, differ, (old.baseline.time, new.baseline.time))


def _costs_of(s: Schedule) -> dict[tuple[str, str], tuple[int, int | str]]:
    return {
        (name, op.id): (s.costs.get(name, {}).get(op.id, 0), op.workspace)
        for name, block in s.blocks.items()
        for op in (*block.forward, *block.backward)
    }


def _model(a: Schedule, b: Schedule) -> tuple[FieldChange, ...]:
    changes: list[FieldChange] = []
    for change in _fields(a.model, b.model, skip=("fingerprint", "note")):
        sides = getattr(a.model, change.field), getattr(b.model, change.field)
        maps: list[dict[str, Any]] = [side for side in sides if isinstance(side, dict)]
        if len(maps) == 2 and change.field != "inputs":
            changes += _entries(change.field, *maps)
        else:
            changes.append(change)
    return tuple(changes)


def _entries(field: str, old: dict[str, Any], new: dict[str, Any]) -> list[FieldChange]:
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return [_change(f"{field}/{name}", old.get(name), new.get(name)) for name in names]


def _change(field: str, old: object, new: object) -> FieldChange:
    return FieldChange(field, msgspec.to_builtins(old), msgspec.to_builtins(new))


def _fields(a: msgspec.Struct, b: msgspec.Struct, skip: tuple[str, ...]) -> tuple[FieldChange, ...]:
    old, new = msgspec.structs.asdict(a), msgspec.structs.asdict(b)
    return tuple(_change(name, old[name], new[name]) for name in old if name not in skip and old[name] != new[name])


def _other(a: Schedule, b: Schedule) -> tuple[str, ...]:
    others = [
        name
        for name in ("schema", "revision", "requires", "namespaces", "name", "note", "lanes")
        if getattr(a, name) != getattr(b, name)
    ]
    if a.model.fingerprint != b.model.fingerprint:
        others.append("fingerprint")
    if list(a.blocks) != list(b.blocks):
        others.append("blocks" if a.blocks.keys() != b.blocks.keys() else "order of the blocks")
    notes = [{where: note for where, note in notes_of(schedule).items() if where} for schedule in (a, b)]
    if notes[0] != notes[1]:
        changed = {k for k in (*notes[0], *notes[1]) if notes[0].get(k) != notes[1].get(k)}
        others.append(f"notes ({len(changed)})")
    sources = _sources(a), _sources(b)
    if sources[0] != sources[1]:
        changed = {k for k in (*sources[0], *sources[1]) if sources[0].get(k) != sources[1].get(k)}
        others.append(f"source lines ({len(changed)})")
    return tuple(others)


def _sources(s: Schedule) -> dict[tuple[str, str], str]:
    return {(n, op.id): op.source for n, b in s.blocks.items() for op in (*b.forward, *b.backward) if op.source}


def _effect(old: Analysis, new: Analysis) -> Effect:
    return Effect(
        (old.timeline.peak, new.timeline.peak),
        (old.timeline.time, new.timeline.time),
        (len(old.expanded.recomputes), len(new.expanded.recomputes)),
        (old.schedule.solve.budget, new.schedule.solve.budget),
        (gap(old), gap(new)),
        (sum(old.timeline.paged.values()), sum(new.timeline.paged.values())),
        (old.timeline.stall, new.timeline.stall),
    )
