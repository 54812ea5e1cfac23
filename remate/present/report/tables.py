"""The figures and tables of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remate_runtime.format import Page, Split, Statement, named

from ...profile.devices import is_estimated
from ...schedule_tools.analysis import Analysis, StorageGroup, grouped, operation_at, recomputing
from ...schedule_tools.figures import bounded, proven_schedule
from ...step_measurement.memory_trace import MemoryTrace
from ..delivered import delivered_line
from ..sizes import sizes_text
from ..text import count, duration, overhead, percent, size
from .blocks import BlockUse, PlanUse, Share, block_uses, listed
from .markup import SHARE, bar, code, folded, table, text
from .markup import note as remark

_SHOWN = 12


def facts(opened: Analysis, trace: MemoryTrace | None) -> str:
    """Return the main figures, each with its reference."""
    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.baseline
    spent = sum(opened.graph.operations[recompute.op].ns for recompute in opened.expanded.recomputes)
    fits = timeline.peak <= solve.budget
    cards = [
        (
            "Peak",
            size(timeline.peak),
            f"{_share(timeline.peak, base.peak)} of {size(base.peak)} without recomputation",
            "",
        ),
        (
            "Budget",
            size(solve.budget),
            f"met, {size(solve.budget - timeline.peak)} left"
            if fits
            else f"exceeded by {size(timeline.peak - solve.budget)}",
            "" if fits else "bad",
        ),
        (
            "Overhead",
            overhead(timeline.time, base.time, "no cost"),
            f"{duration(timeline.time)} a step, without recomputation {duration(base.time)}",
            "",
        ),
        ("Recomputes", f"{len(opened.expanded.recomputes):,}", f"{duration(spent)} a step", ""),
    ]
    if timeline.lanes:
        moved = sum(lane.nbytes for lane in timeline.lanes if lane.direction == "out")
        cards.append(("Paged", size(moved), f"leaves and comes back; the step waits {duration(timeline.stall)}", ""))
    if solve.lower_bound is not None and bounded(opened):
        of = " of estimated costs" * is_estimated(solve.cost)
        kind = proven_schedule(solve.settings)
        proof = f"proven{of}: no {kind} within the budget is faster than {duration(solve.lower_bound)}"
        cards.append(("Lower bound", overhead(solve.lower_bound, base.time, "no cost"), proof, ""))
    if trace is not None:
        far = trace.peak - timeline.peak
        off = f"{size(abs(far))} {'more' if far > 0 else 'less'} than predicted" if far else "as predicted"
        cards.append(("Measured peak", size(trace.peak), f"on {trace.device}; {off}", ""))
    return (
        '<dl class="facts">'
        + "".join(
            f'<div><dt>{text(name)}</dt><dd>{text(figure)}</dd><dd class="{kind or "aside"}">{text(about)}</dd></div>'
            for name, figure, about, kind in cards
        )
        + "</dl>"
    )


def about(opened: Analysis) -> str:
    """Return the origin of the schedule and its solution."""
    model, solve = opened.schedule.model, opened.schedule.solve
    operations = f"{count(len(opened.graph.operations), 'operation')}, {opened.graph.backward_start:,} of them forward"
    rows = [
        ("Model", f"{text(model.name)}, {'training' if model.training else 'evaluation'} mode"),
        (
            "Step",
            f"{operations}; on {text(model.device)}" + (f", autocast {text(model.autocast)}" if model.autocast else ""),
        ),
        *([("Sizes", text(sizes_text(model)))] if model.dims else []),
        ("Captured with", f"torch {text(model.torch)}"),
        ("Times", "measured" if solve.cost == "measured" else f"from {text(solve.cost)}"),
        ("Gradients", text(delivered_line(opened))),
        ("Solved by", f"{text(solve.strategy)} ({text(solve.solver)}), stopped by {text(solve.stopped_by)}"),
    ]
    if solve.gap is not None:
        rows.append(
            (
                "Gap",
                f"{percent(solve.gap)} of the time without recomputation, between this schedule and the lower bound",
            )
        )
    if (solve.peak, solve.time) != (opened.timeline.peak, opened.timeline.time):
        stated = f"the file states {size(solve.peak)} and {duration(solve.time)}; this page shows computed figures"
        rows.append(("Edited since", stated))
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return f'<dl class="about">{items}</dl>'


def blocks(opened: Analysis) -> str:
    """Return a table for each block: its plans, their kept bytes, recomputations and instances."""
    return "\n".join(_block(opened, use) for use in block_uses(opened))


def _block(opened: Analysis, use: BlockUse) -> str:
    nested = f"{count(use.inside, 'instance')} of other blocks, " if use.inside else ""
    of = f"{nested}{use.forward:,} forward and {use.backward:,} backward operations"
    note = f'<p class="note">{remark(use.note)}</p>' if use.note else ""
    head = ("Plan", "Used", "Kept for backward", "Recomputes", "Recompute time", "Instances")
    rows = [_plan(plan) for plan in use.plans]
    body = table(f"Plans of {use.name}; figures are for one instance", head, rows, right=(1, 2, 3, 4), ids=5)
    stated = "".join(_recomputes_of(opened, use, plan) for plan in use.plans)
    return f"<h3>{text(use.name)}</h3><p>{of}.</p>{note}{body}" + (
        folded("What the plans recompute", stated) if stated else ""
    )


def _plan(use: PlanUse) -> tuple[str, ...]:
    instances = text(listed(use.instances)) if use.instances else "unused"
    kept = _range(use.shares, lambda s: s.kept, size)
    return (
        code(use.plan),
        f"{len(use.instances)}×",
        kept,
        _range(use.shares, lambda s: s.recomputes, lambda n: f"{n:,}"),
        _range(use.shares, lambda s: s.ns, lambda ns: duration(ns) if ns else "–"),
        instances,
    )


def _range(shares: Sequence[Share], of: Callable[[Share], int], shown: Callable[[int], str]) -> str:
    if not shares:
        return "–"
    low, high = shown(min(map(of, shares))), shown(max(map(of, shares)))
    return low if low == high else f"{low} – {high}"


def _recomputes_of(opened: Analysis, block: BlockUse, use: PlanUse) -> str:
    stated = opened.schedule.blocks[block.name].plans.get(use.plan, ())
    if not stated:
        return ""
    lines = "".join(
        f"<li>{_stated(s)}" + (f' <span class="note">{remark(s.note)}</span>' if s.note else "") + "</li>"
        for s in stated
    )
    return f"<p>{code(use.plan)}</p><ul>{lines}</ul>"


def _stated(statement: Statement) -> str:
    names = ", ".join(map(code, named(statement)))
    if isinstance(statement, Split):
        return f"in {statement.into} tiles along {statement.along}: {names}"
    if not isinstance(statement, Page):
        return f"before {code(statement.before)}: {names}"
    points = [f"{field} {code(point)}" for field in ("out", "gone", "back") if (point := getattr(statement, field))]
    return f"paged to the {statement.to}{''.join(f', {point}' for point in points)}: {names}"


def kept(opened: Analysis) -> str:
    """Return the contents of memory when backward starts."""
    if not opened.timeline.during:
        return "<p>The step has no operations.</p>"
    return _holders("Held when backward starts", grouped(opened, opened.timeline.backward_start))


def at_peak(opened: Analysis) -> str:
    """Return the contents of memory at the first peak."""
    timeline = opened.timeline
    if not timeline.during:
        return ""
    part = "forward" if timeline.peak_at < timeline.backward_start else "backward"
    where = f"<p>In {part}, while {code(operation_at(opened, timeline.peak_at))} runs.</p>"
    return where + _holders("Held at the peak", grouped(opened, timeline.peak_at))


def _holders(caption: str, groups: list[StorageGroup]) -> str:
    total = sum(group.nbytes for group in groups)
    rows = [
        (
            size(g.nbytes),
            bar(g.nbytes / total),
            f"{g.count}×",
            code(g.name),
            code(g.type),
        )
        for g in groups
    ]
    return _cut(f"{caption}: {size(total)}", ("Bytes", SHARE, "Count", "Value", "Type"), rows, right=(0, 2))


def recomputes(opened: Analysis) -> str:
    """Return the recomputations, grouped by name without numbers."""
    groups = recomputing(opened)
    if not groups:
        return "<p>None: every value is kept until its last use.</p>"
    total = sum(r.ns for r in groups)
    rows = [
        (
            duration(r.ns),
            bar(r.ns / total if total else 0.0, "recompute"),
            f"{r.count}×",
            code(r.name),
            code(r.operator),
        )
        for r in groups
    ]
    caption = f"Recomputations: {duration(total)} in {count(len(opened.expanded.recomputes), 'recomputation')}"
    return _cut(caption, ("Time", SHARE, "Count", "Operation", "Operator"), rows, right=(0, 2))


def _cut(caption: str, head: Sequence[str], rows: list[tuple[str, ...]], right: Sequence[int]) -> str:
    """Return a table of the first rows. Further rows open on demand."""
    shown = table(caption, head, rows[:_SHOWN], right)
    rest = rows[_SHOWN:]
    return shown + (folded(f"{len(rest)} more", table(f"{caption}, the rest", head, rest, right)) if rest else "")


def _share(part: int, whole: int) -> str:
    return percent(part / whole, 1) if whole else "–"
