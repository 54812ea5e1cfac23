"""The text of `remate diff`: decisions, plans, operations and figures that differ between two schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..schedule_tools.decisions import InstanceDecision, OperationDecision
from ..schedule_tools.diff import CostChange, Effect, FieldChange, ScheduleDiff
from .text import duration, overhead, percent, plain, size, table

SHOWN = 12  # of a kind, unless more are requested


def described(changes: ScheduleDiff, limit: int | None = SHOWN) -> str:
    """The text that `diff` prints."""
    if changes.equal:
        return "the schedules are equal"
    parts = [_decisions(changes.decisions, limit), _plans(changes), _graph(changes, limit)]
    parts.append(_costs(changes.costs))
    parts += [_fields("model", changes.model, limit), _fields("solve", [*map(_in_words, changes.solve)], limit)]
    if changes.other:
        parts.append("also: " + plain(", ".join(changes.other)))
    return "\n\n".join([part for part in parts if part] + [effect(changes.effect)])


def _decisions(decisions: tuple[InstanceDecision, ...], limit: int | None) -> str:
    if not decisions:
        return "decisions: none differs"
    lines = ["decisions"]
    for one in decisions[:limit]:
        named = f": plan {one.plan[0]} -> {one.plan[1]}" if one.plan else ""
        lines.append(f"  {listed(one.instances)} ({one.block}){named}")
        groups = {
            "now kept": one.kept,
            "now recomputed": one.recompute,
            "other point": one.moved,
            "times changed": one.again,
            "paging": one.paged,
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
    lines = []
    for field in changes.instances[:limit]:
        lines.append(f"  instance {field.field}: {_value(field.old)} -> {_value(field.new)}")
    lines += _rest(len(changes.instances), limit, "  ")
    if replaced := _replaced(changes):
        lines.append(f"  operators: {replaced}")
    for block in changes.graph:
        counts = {kind: [o for o in block.operations if o.change == kind] for kind in _KINDS}
        said = ", ".join(f"{len(ops)} {_KINDS[kind]}" for kind, ops in counts.items() if ops)
        lines.append(f"  {block.block}: {said}")
        shown = sorted(block.operations, key=lambda o: list(_KINDS).index(o.change))[:limit]
        rows = [(f"    {o.change}", o.op, f"{o.count}x", " -> ".join(x for x in (o.old, o.new) if x)) for o in shown]
        lines += [table(rows, right=(2,)), *_rest(len(block.operations), limit, "    ")]
    return "\n".join(["graph", *lines]) if lines else ""


def _replaced(changes: ScheduleDiff) -> str:
    """`aten.gelu -> aten.silu 12x`: operators that took the places of others."""
    times: Counter[tuple[str, str]] = Counter()
    for block in changes.graph:
        for op in block.operations:
            if op.change == "replaced":
                times[op.old, op.new] += op.count
    return ", ".join(f"{old} -> {new} {number}x" for (old, new), number in times.items())


def _costs(costs: CostChange | None) -> str:
    if costs is None:
        return ""
    many = f"{costs.operations:,} operation{'' if costs.operations == 1 else 's'}"
    took = _change(*costs.baseline)
    return "costs: " + ", ".join(
        [*(["another profile"] if costs.profile else []), many, *([f"baseline time {took}"] if took else [])]
    )


_KINDS = {"replaced": "replaced", "added": "added", "removed": "removed", "changed": "changed", "renamed": "renamed"}


def _in_words(change: FieldChange) -> FieldChange:
    """A change of bytes, of a time or of a share, as `show` has it."""
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


def _value(value: Any) -> str:
    import json

    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return plain(text if len(text) <= 60 else text[:59] + "…")


def effect(found: Effect) -> str:
    """The table of peak and time, before and after."""
    return table(effect_rows(found), right=(1, 2))


def effect_rows(found: Effect) -> list[tuple[str, ...]]:
    """The rows of this table, the first its head."""
    rows: list[tuple[str, ...]] = [
        ("effect", "before", "after", ""),
        ("  peak", size(found.peak[0]), size(found.peak[1]), _change(*found.peak)),
        ("  time", duration(found.time[0]), duration(found.time[1]), _change(*found.time)),
        ("  recomputations", f"{found.recomputes[0]:,}", f"{found.recomputes[1]:,}", ""),
        *(
            (
                ("  paged", size(found.paged[0]), size(found.paged[1]), _change(*found.paged)),
                ("  waiting", duration(found.stall[0]), duration(found.stall[1]), ""),
            )
            if found.paged != (0, 0)
            else ()
        ),
        ("  budget", size(found.budget[0]), size(found.budget[1]), _verdict(found)),
    ]
    if found.gap != (None, None):
        before, after = ("-" if gap is None else percent(gap) for gap in found.gap)
        rows.append(("  gap", before, after, ""))
    return rows


def _verdict(found: Effect) -> str:
    over = found.peak[1] - found.budget[1]
    return f"exceeded by {size(over)}" if over > 0 else "met"


def _change(old: int, new: int) -> str:
    if old == new:
        return "unchanged"
    return overhead(new, old)


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}" if ns else ""


def listed(names: tuple[str, ...]) -> str:
    """The first names, and how many there are."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … {names[-1]} ({len(names)} in all)"


def _rest(total: int, limit: int | None, indent: str) -> list[str]:
    return [f"{indent}… and {total - limit} more (--all)"] if limit is not None and total > limit else []
