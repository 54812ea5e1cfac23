"""The whole page: a single file that loads nothing and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template

from remate_runtime.version import __version__

from ...schedule_tools.analysis import Analysis
from ...step_measurement.memory_trace import MemoryTrace
from ..text import PEAK_NOTE, escape
from . import tables
from .chart import lanes, memory_chart, time_axis
from .frontier import Frontier, frontier_section
from .markup import note, text
from .payload import payload, script_text
from .scene import scene

_MEASURED = (
    "The measured curve is of one step of the schedule. Its forward and its backward are each stretched to the "
    "predicted time, so that the two curves can be compared."
)


def page(opened: Analysis, trace: MemoryTrace | None = None, frontier: Frontier | None = None) -> str:
    """Return the page as HTML.

    Args:
        opened: The schedule.
        trace: A measured curve.
        frontier: Other schedules of the same step.
    """
    style, script = _asset("report.css"), _asset("report.js")
    shown = scene(opened, trace)
    schedule = opened.schedule
    return Template(_asset("page.html")).substitute(
        title=escape(schedule.name),
        policy=_policy(style, script),
        style=style,
        script=script,
        name=text(schedule.name),
        note=f'<p class="note">{note(schedule.note)}</p>' if schedule.note else "",
        facts=tables.facts(opened, trace),
        memory=memory_chart(shown),
        lanes=lanes(shown),
        axis=time_axis(shown.span, opened.timeline.time > 0),
        measured_key='<li class="measured">measured</li>' if trace is not None else "",
        measured_note=f'<p class="aside">{_MEASURED}</p>' if trace is not None else "",
        blocks=tables.blocks(opened),
        at_peak=tables.at_peak(opened),
        kept=tables.kept(opened),
        recomputes=tables.recomputes(opened),
        frontier=_section(frontier) if frontier is not None else "",
        about=tables.about(opened),
        peak_note=escape(" ".join(PEAK_NOTE.split())),
        version=escape(__version__),
        data=script_text(payload(opened, shown, trace)),
    )


def _section(frontier: Frontier) -> str:
    head = '<section aria-labelledby="other"><h2 id="other">Other budgets</h2>'
    keys = '<ul class="keys"><li class="ours">schedules</li><li class="bound">proven lower bound</li></ul>'
    intro = "<p>Extra time of a step against its budget. Labels: budget as a share of the baseline's peak.</p>"
    return f"{head}{intro}{keys}{frontier_section(frontier)}</section>"


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy, which permits this style and this script only."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("remate.present.report").joinpath(name).read_text(encoding="utf-8")
