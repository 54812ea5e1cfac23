"""Outcomes as text. Standard library alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

from .contest import Outcome

LEGEND = """peak: bytes that a step holds at its worst moment above what is held between steps (torch.cuda.max_memory_allocated,
on the CPU the allocator's events). predicted: by the schedule. reserved: torch.cuda.max_memory_reserved, all in all. by the step: of that, what the step
added to what was reserved between steps, from an empty cache. modelled: the same by the model that `remate show` prints.
step: median of forward and backward. issued: until Python had issued it to the device, as a share of the step; near 100%, Python is
what takes the time. planned: by the costs of the plan, which are measured, and those of the roofline model for
remate-elsewhere, which was planned by a process that sees no GPU. over eager: median of the time over eager's in the same round, with the middle half.
gradients: largest difference from eager's, relative to the largest element. ready: seconds until the first steps had run."""

_LABELS = {
    "checkpoint": "torch.utils.checkpoint per block",
    "compile": "torch.compile",
    "compile=0.5": "torch.compile, memory budget .5",
    "compile=0.1": "torch.compile, memory budget .1",
    "remate=checkpoint": "remate, at checkpoint's peak",
}


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Of one model."""
    eager = outcomes.get("eager")
    head = (
        "",
        "peak",
        "predicted",
        "reserved",
        "by the step",
        "modelled",
        "step",
        "issued",
        "planned",
        "over eager",
        "gradients",
        "ready",
    )
    rows = [head, *(_row(outcome, eager) for name, outcome in outcomes.items() if name != "profile")]
    full = [row for row in rows if len(row) == len(head)]
    widths = [max(len(row[i]) for row in full) for i in range(len(head))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=False))]
        lines.append("  ".join(cells).rstrip() if len(row) == len(head) else f"{cells[0]}  {row[1]}")
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def label(configuration: str) -> str:
    """A configuration in words."""
    name, _, detail = configuration.partition("=")
    return _LABELS.get(configuration, f"{name}, budget {detail}" if detail else name)


def _row(outcome: Outcome, eager: Outcome | None) -> Sequence[str]:
    name, shown = outcome.configuration.partition("=")[0], label(outcome.configuration)
    if "peak" not in outcome.facts:
        return shown, f"failed: {reason(outcome)}"
    step, ratio = f"{outcome.median:.2f} ms" if outcome.times else "-", outcome.over(eager)
    return (
        shown,
        _size(outcome.facts["peak"]),
        _size(outcome.facts.get("predicted", 0)),
        _size(outcome.facts.get("reserved", 0)),
        _size(outcome.facts.get("step_reserved", 0)),
        _size(outcome.facts.get("modelled_reserved", 0)),
        step,
        f"{statistics.median(itertools.chain(*outcome.issued)) / outcome.median:.0%}" if outcome.issued else "",
        f"{outcome.facts['predicted_ms']:.2f} ms" if "predicted_ms" in outcome.facts else "",
        f"{ratio[1]:.3f} ({ratio[0]:.3f}-{ratio[2]:.3f})" if ratio else "-",
        ""
        if not name.startswith("remate")
        else "equal"
        if outcome.facts["bitwise"]
        else f"{outcome.facts['difference']:.1e}",
        f"{outcome.facts['seconds']:.0f} s",
    )


def reason(outcome: Outcome) -> str:
    """In one line: of a traceback, its error."""
    lines = [line for line in outcome.failure.splitlines() if line.strip()] or ["no time was left"]
    if not lines[0].startswith("Traceback"):
        return lines[0][:120]
    errors = [line for line in lines if not line.startswith((" ", "Traceback", "The above", "During"))]
    return (errors or lines)[0][:120]


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes else ""
