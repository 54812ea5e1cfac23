"""`remate explain`: why a value is kept or recomputed. Without ID: what holds memory at the peak, and what a larger
budget would save."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..present.text import count, duration, json_text, plain, size, table
from . import exit_codes
from .device_memory import bytes_of
from .output import say
from .sizes import add_at, opened_at

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis
    from ..schedule_tools.explain import Alternative, Explanation, Moment
    from ..schedule_tools.overview import Costly, Overview, Purchase

_SHOWN = 8


def configure(commands: Any) -> None:
    parser = commands.add_parser("explain", help="explain why a value is kept or recomputed", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file; -: standard input")
    parser.add_argument("id", metavar="ID", nargs="?", help="an operation, a value or an instance, by its full id")
    parser.add_argument(
        "--more", metavar="SIZE", type=bytes_of, help="increase of the budget; default: a tenth of the baseline's peak"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default text")
    add_at(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..schedule_tools.explain import explain
    from ..schedule_tools.overview import overview

    opened = opened_at(args.schedule, args.at)
    explanation = explain(opened, args.id) if args.id else overview(opened, args.more)
    if args.format == "json":
        print(json_text(explanation))
    else:
        for line in _where(opened, args.at):
            say(plain(line))
        say(_explanation(explanation) if args.id else _overview(explanation))  # type: ignore[arg-type]
    return exit_codes.FINE


def _where(opened: Analysis, at: Mapping[str, int]) -> list[str]:
    """Name the size that the output is for, if the schedule has named sizes."""
    from remate_runtime.format import spelled

    if at:
        return [f"at {spelled(at)}, with the times of the size that was planned"]
    dims = opened.schedule.model.dims
    return [f"at {spelled({name: dim.planned for name, dim in dims.items()})}, as planned"] if dims else []


def _explanation(explanation: Explanation) -> str:
    parts = [
        "\n".join(
            [plain(f"{explanation.name}: {explanation.about}"), *(f"  {plain(fact)}" for fact in explanation.facts)]
        )
    ]
    if explanation.held:
        rows = [
            (f"  {size(h.nbytes)}", h.value, _span(h.start, h.end, h.steps), _peak(h.at_peak)) for h in explanation.held
        ]
        parts.append(f"held\n{table(rows[:_SHOWN])}" + _more(len(rows)))
    if explanation.choices:
        parts.append(_choices(explanation.choices))
    parts.append(_moment(explanation.peak))
    return "\n\n".join(parts)


def _span(start: str, end: str, steps: int) -> str:
    return f"from {start} to {end} ({count(steps, 'step')})"


def _peak(at_peak: bool) -> str:
    return "at the peak" if at_peak else ""


def _more(total: int) -> str:
    return f"\n  … and {total - _SHOWN} more (--format json)" if total > _SHOWN else ""


def _choices(choices: tuple[Alternative, ...]) -> str:
    now = choices[0]
    rows = [("  choice", "peak", "", "time", "")]
    for choice in choices:
        if choice.peak is None or choice.time is None or now.peak is None or now.time is None:
            rows.append((f"  {choice.what}", "-", "", "-", ""))
            continue
        change = (
            ("", "")
            if choice is now
            else (_signed(choice.peak - now.peak, size), _signed(choice.time - now.time, duration))
        )
        rows.append((f"  {choice.what}", size(choice.peak), change[0], duration(choice.time), change[1]))
    lines = ["what it costs", table(rows, right=(1, 2, 3, 4))]
    for choice in choices:
        if len(choice.operations) > 1:
            names = ", ".join(choice.operations[:_SHOWN])
            rest = f" and {len(choice.operations) - _SHOWN} more" if len(choice.operations) > _SHOWN else ""
            lines.append(f"  {choice.what}: {names}{rest}")
    return "\n".join(lines)


def _signed(amount: int, text: Any) -> str:
    return f"{'-' if amount < 0 else '+'}{text(abs(amount))}" if amount else "same"


def _moment(peak: Moment) -> str:
    rows = [(f"  {size(g.nbytes)}", f"{g.count}x", g.name, g.type) for g in peak.holders]
    title = f"the peak, {size(peak.nbytes)}, is in {peak.part} at {peak.step}"
    return f"{title}; largest values:\n{table(rows, right=(0, 1))}" if rows else title


def _overview(overview: Overview) -> str:
    moment = overview.peak
    rows = [("  bytes", "", "value", "type", "is", "instead", "peak", "time")]
    rows += [_costly(overview, value) for value in overview.costliest]
    title = f"the peak, {size(overview.peak_bytes)}, is in {moment.part} at {moment.step}; largest values:"
    parts = [f"{title}\n{table(rows, right=(0, 1, 6, 7))}"]
    parts.append(
        _purchase(overview, overview.more)
        if overview.more
        else "nothing is recomputed: a larger budget would save no time"
    )
    return "\n\n".join(parts)


def _costly(overview: Overview, value: Costly) -> tuple[str, ...]:
    change = ("not tried", "") if value.other else ("", "")
    if value.peak is not None and value.time is not None:
        change = _signed(value.peak - overview.peak_bytes, size), _signed(value.time - overview.time, duration)
    return (
        f"  {size(value.nbytes)}",
        f"{value.count}x",
        value.name,
        value.type,
        value.state,
        value.other or "",
        *change,
    )


def _purchase(overview: Overview, purchase: Purchase) -> str:
    title = f"{size(purchase.extra)} more budget"
    if not purchase.keep:
        return f"{title} would remove no recomputation"
    saved = overview.time - purchase.time
    share = f" ({saved / overview.time:.1%} of the step)" if overview.time else ""
    left = (
        "no recomputations remain" if purchase.everything else f"{count(purchase.recomputes, 'recomputation')} remain"
    )
    lines = [f"{title} would save {duration(saved)}{share}: peak {size(purchase.peak)}, {left}; values kept instead:"]
    rows = [(f"  {number}x", name) for name, number in purchase.keep[:_SHOWN]]
    rest = len(purchase.keep) - _SHOWN
    return "\n".join([*lines, table(rows, right=(0,)), *([f"  … and {rest} more kinds"] if rest > 0 else [])])
