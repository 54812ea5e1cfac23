"""A summary of a schedule from the figures in its file, as `repr` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.plain_text import plain
from ..support.quantities import duration, overhead, size
from .live_range import range_text
from .substitution import ranged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .schedule import Schedule

_CLIP = 100  # characters of a text that the file is free to choose
_LISTED = 6  # sizes and attributes


def facts(schedule: Schedule) -> list[tuple[str, str]]:
    """Return rows of (name, text). Figures are those of the file; nothing is computed."""
    model, solve = schedule.model, schedule.solve
    mode = "training" if model.training else "evaluation"
    autocast = f", autocast {model.autocast}" if model.autocast else ""
    at = f" at {clipped(', '.join(model.at))}" if model.at else ""
    base = solve.baseline_peak
    share = f", {solve.peak / base * 100:.1f}% of the baseline's {size(base)}" if base else ""
    over = overhead(solve.time, solve.baseline_time)
    gap = "" if solve.gap is None else f", at most {solve.gap * 100:.2f}% above the fastest"
    rows = [
        ("model", f"{clipped(model.name)}{at}, {mode}, {model.device}{autocast}, torch {clipped(model.torch)}"),
        ("peak", f"{size(solve.peak)}{share}; budget {size(solve.budget)}"),
        ("time", f"{duration(solve.time)}{f' ({over})' if over else ''}, {clipped(solve.cost)} costs{gap}"),
    ]
    if model.dims:
        rows.append(
            (
                "sizes",
                _listed(
                    [*(f"{clipped(name)}={ranged(dim)}" for name, dim in model.dims.items()), *_limits(model.limits)]
                ),
            )
        )
    if model.live:
        rows.append(("live", _listed([f"{clipped(name)} {range_text(live)}" for name, live in model.live.items()])))
    statements = sum(len(plan) for block in schedule.blocks.values() for plan in block.plans.values())
    statements += len(schedule.statements)
    rows.append(
        (
            "holds",
            f"{_count(len(schedule.blocks), 'block')}, {_count(len(schedule.program), 'instance')} at the top, "
            f"{_count(statements, 'statement')} of plans",
        )
    )
    rows.append(("solved", f"by {clipped(solve.strategy)}, stopped by {clipped(solve.stopped_by)}"))
    return rows


def summary(schedule: Schedule) -> str:
    """Return a summary of at most ten lines."""
    lines = [f"  {name:<7}{text}" for name, text in facts(schedule)]
    return "\n".join([f"<Schedule {clipped(schedule.name)}", *lines]) + ">"


def clipped(text: str) -> str:
    """Return a short line that is safe to print."""
    shown = plain(text)
    return shown if len(shown) <= _CLIP else f"{shown[: _CLIP - 1]}…"


def _limits(limits: Mapping[str, int]) -> list[str]:
    return [f"{clipped(text)}<={most}" for text, most in limits.items()]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(texts: list[str]) -> str:
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")
