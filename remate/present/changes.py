"""The text of `remate diff`: decisions, plans, operations and figures that differ between two schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..schedule_tools.decisions import InstanceDecision, OperationDecision
from ..schedule_tools.diff import CostChange, Effect, FieldChange, ScheduleDiff
from .text import count, duration, overhead, percent, plain, size, table

SHOWN = 12  # items of each kind by default


def described(changes: ScheduleDiff, limit: int | None = SHOWN) -> str:
    """Return the text of `remate diff`.

    Args:
        changes: The differences.
        limit: Most items of each kind; None for all.
    """
    if changes.equal:
        return "the schedules are equal"
    parts = [_decisions(changes.decisions, limit), _plans(changes), _graph(changes, limit)]
    parts.append(_costs(changes.costs))
    parts += [_fields("model", changes.model, limit), _fields("solve", [*map(_formatted, changes.solve)], limit)]
    if changes.other:
        parts.append("also: " + plain(", ".join(changes.other)))
    return "\n\n".join([part for part in parts if part] + [effect(changes.effect)])


def _decisions(decisions: tuple[InstanceDecision, ...], limit: int | None) -> str:
    if not decisions:
        return "decisions: none differs"
    lines = ["decisions"]
    for decision in decisions[:limit]:
        named = f": plan {decision.plan[0]} -> {decision.plan[1]}" if decision.plan else ""
        lines.append(f"  {listed(decision.instances)} ({decision.block}){named}")
        groups = {
            "now kept": decision.kept,
            "now recomputed": decision.recompute,
            "other point": decision.moved,
            "times changed": decision.again,
            "paging": decision.paged,
        }
        rows = [
            (f"    {word}", choice.op, size(choice.nbytes), _signed(choice.ns), _where(word, choice))
            for word, choices in groups.items()
            for choice in choices
        ]
        lines += [table(rows[:limit], right=(2, 3))] if rows else []
        lines += _rest(len(rows), limit, "    ")
    return "\n".join([*lines, *_rest(len(decisions), limit, "  ")])


def _where(word: str, choice: OperationDecision) -> str:
    if word == "paging":
        return f"{'; '.join(choice.old) or 'kept'} -> {'; '.join(choice.new) or 'no longer'}"
    if word == "now kept":
        return ""
    if word == "now recomputed":
        return "before " + ", ".join(choice.new)
    return f"before {', '.join(choice.old)} -> {', '.join(choice.new)}"


def _plans(changes: ScheduleDiff) -> str:
    rows = [(f"  {p.block}", p.plan, p.change, f"{p.entries[0]} -> {p.entries[1]} entries") for p in changes.plans]
    if changes.toplevel:
        rows.append(
            ("  (top level)", "statements", "changed", f"{changes.toplevel[0]} -> {changes.toplevel[1]} entries")
        )
    return "plan definitions\n" + table(rows) if rows else ""


def _graph(changes: ScheduleDiff, limit: int | None) -> str:
    lines: list[str] = []
    for field in changes.instances[:limit]:
        lines.append(f"  instance {field.field}: {_value(field.old)} -> {_value(field.new)}")
    lines += _rest(len(changes.instances), limit, "  ")
    if replaced := _replaced(changes):
        lines.append(f"  operators: {replaced}")
    for block in changes.graph:
        counts = {kind: [o for o in block.operations if o.change == kind] for kind in _KINDS}
        summary = ", ".join(f"{len(ops)} {_KINDS[kind]}" for kind, ops in counts.items() if ops)
        lines.append(f"  {block.block}: {summary}")
        shown = sorted(block.operations, key=lambda o: list(_KINDS).index(o.change))[:limit]
        rows = [(f"    {o.change}", o.op, f"{o.count}x", " -> ".join(x for x in (o.old, o.new) if x)) for o in shown]
        lines += [table(rows, right=(2,)), *_rest(len(block.operations), limit, "    ")]
    return "\n".join(["graph", *lines]) if lines else ""


def _replaced(changes: ScheduleDiff) -> str:
    """Return the replaced operators: `aten.gelu -> aten.silu 12x`."""
    times: Counter[tuple[str, str]] = Counter()
    for block in changes.graph:
        for op in block.operations:
            if op.change == "replaced":
                times[op.old, op.new] += op.count
    return ", ".join(f"{old} -> {new} {number}x" for (old, new), number in times.items())


def _costs(costs: CostChange | None) -> str:
    if costs is None:
        return ""
    operations = count(costs.operations, "operation")
    change = _change(*costs.baseline)
    return "costs: " + ", ".join(
        [*(["another profile"] if costs.profile else []), operations, *([f"baseline time {change}"] if change else [])]
    )


_KINDS = {"replaced": "replaced", "added": "added", "removed": "removed", "changed": "changed", "renamed": "renamed"}


def _formatted(change: FieldChange) -> FieldChange:
    """Format a change of bytes, time or share as `show` does."""
    if change.field not in _FIGURES:
        return change
    name, text = _FIGURES[change.field]
    return FieldChange(name, *("none" if value is None else text(value) for value in (change.old, change.new)))


_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "compiled/budget": ("budget where compiled", size),
    "compiled/peak": ("peak where compiled", size),
    **{name: (name, size) for name in ("budget", "peak", "baseline_peak")},
    **{name: (name, duration) for name in ("time", "baseline_time", "lower_bound")},
    "gap": ("gap", percent),
}


def _fields(title: str, fields: Sequence[FieldChange], limit: int | None) -> str:
    rows = [(f"  {f.field}", f"{_value(f.old)} -> {_value(f.new)}") for f in fields[:limit]]
    return "\n".join([title, table(rows), *_rest(len(fields), limit, "  ")]) if rows else ""


def _value(value: object) -> str:
    import json

    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return plain(text if len(text) <= 60 else text[:59] + "…")


def effect(change: Effect) -> str:
    """Return the table of peak and time, before and after."""
    return table(effect_rows(change), right=(1, 2))


def effect_rows(change: Effect) -> list[tuple[str, ...]]:
    """Return the rows of this table. The first row is the header."""
    rows: list[tuple[str, ...]] = [
        ("effect", "before", "after", ""),
        ("  peak", size(change.peak[0]), size(change.peak[1]), _change(*change.peak)),
        ("  time", duration(change.time[0]), duration(change.time[1]), _change(*change.time)),
        ("  recomputations", f"{change.recomputes[0]:,}", f"{change.recomputes[1]:,}", ""),
        *(
            (
                ("  paged", size(change.paged[0]), size(change.paged[1]), _change(*change.paged)),
                ("  waiting", duration(change.stall[0]), duration(change.stall[1]), ""),
            )
            if change.paged != (0, 0)
            else ()
        ),
        ("  budget", size(change.budget[0]), size(change.budget[1]), _verdict(change)),
    ]
    if change.gap != (None, None):
        before, after = ("-" if gap is None else percent(gap) for gap in change.gap)
        rows.append(("  gap", before, after, ""))
    return rows


def _verdict(change: Effect) -> str:
    over = change.peak[1] - change.budget[1]
    return f"exceeded by {size(over)}" if over > 0 else "met"


def _change(old: int, new: int) -> str:
    if old == new:
        return "unchanged"
    return overhead(new, old)


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}" if ns else ""


def listed(names: tuple[str, ...]) -> str:
    """Return the first names and the number of all."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … {names[-1]} ({len(names)} in all)"


def _rest(total: int, limit: int | None, indent: str) -> list[str]:
    return [f"{indent}… and {total - limit} more (--all)"] if limit is not None and total > limit else []
