"""The differences of two schedules as a comment on a pull request: effect and decisions, and the rest folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..schedule_tools.decisions import InstanceDecision
from ..schedule_tools.diff import ScheduleDiff
from .changes import SHOWN, described, effect_rows, listed
from .text import plain


def markdown(title: str, changes: ScheduleDiff, limit: int | None = SHOWN) -> str:
    """Return the comment.

    Args:
        title: The title of the section, a file name.
        changes: The differences.
        limit: Most items of each kind; None for all.
    """
    head = f"### {code(title)}\n"
    if changes.equal:
        return f"{head}\nThe schedules are equal."
    folded = _folded(described(changes, limit))
    return "\n".join([head, *_effect(changes), "", *_decisions(changes.decisions, limit), "", *folded])


def code(text: str) -> str:
    """Return text as inline code in a single line, so that a name cannot become a link, a mention or markup."""
    line = plain(" ".join(text.split()))
    ticks = "`" * (1 + _longest_run(line))
    return f"{ticks} {line} {ticks}" if len(ticks) > 1 else f"`{line}`"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _effect(changes: ScheduleDiff) -> Iterator[str]:
    _, *rows = effect_rows(changes.effect)
    yield "| | before | after | |"
    yield "|---|--:|--:|---|"
    for row in rows:
        yield "| " + " | ".join([cell.strip() for cell in (*row, *[""] * (4 - len(row)))]) + " |"


def _decisions(decisions: tuple[InstanceDecision, ...], limit: int | None) -> Iterator[str]:
    if not decisions:
        yield "No decision differs."
    for decision in decisions[:limit]:
        plan = [f"plan {code(decision.plan[0])} to {code(decision.plan[1])}"] if decision.plan else []
        groups = {
            "now kept": decision.kept,
            "now recomputed": decision.recompute,
            "other point": decision.moved,
            "times changed": decision.again,
        }
        changed = [
            f"{word}: {code(listed(tuple(choice.op for choice in group)))}" for word, group in groups.items() if group
        ]
        yield f"- {code(listed(decision.instances))} ({code(decision.block)}): {'; '.join([*plan, *changed])}"
    if limit is not None and len(decisions) > limit:
        yield f"- … and {len(decisions) - limit} more"


def _folded(text: str) -> list[str]:
    """Return text as a folded code block. Its fence is longer than any fence in the text."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return ["<details><summary>All changes</summary>", "", f"{fence}text", text, fence, "", "</details>"]
