"""`remate explain`: why something is kept or recomputed; without ID, where the memory goes and what more of it would
buy."""

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
    parser = commands.add_parser("explain", help="tell why something is kept or recomputed", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file; -: standard input")
    parser.add_argument("id", metavar="ID", nargs="?", help="an operation, a value or an instance, by its full id")
    parser.add_argument(
        "--more", metavar="SIZE", type=bytes_of, help="budget to add; default: a tenth of the baseline's peak"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default text")
    add_at(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..schedule_tools.explain import explain
    from ..schedule_tools.overview import overview

    opened = opened_at(args.schedule, args.at)
    found = explain(opened, args.id) if args.id else overview(opened, args.more)
    if args.format == "json":
        print(json_text(found))
    else:
        for line in _where(opened, args.at):
            say(plain(line))
        say(_explanation(found) if args.id else _overview(found))  # type: ignore[arg-type]
    return exit_codes.FINE


def _where(opened: Analysis, at: Mapping[str, int]) -> list[str]:
    """At which size this is so, of a schedule that names sizes."""
    from remate_runtime.format import spelled

    if at:
        return [f"at {spelled(at)}, with the times of the size that was planned"]
    dims = opened.schedule.model.dims
    return [f"at {spelled({name: dim.planned for name, dim in dims.items()})}, as planned"] if dims else []


def _explanation(found: Explanation) -> str:
    parts = ["\n".join([plain(f"{found.name}: {found.about}"), *(f"  {plain(fact)}" for fact in found.facts)])]
    if found.held:
        rows = [(f"  {size(h.nbytes)}", h.value, _span(h.start, h.end, h.steps), _peak(h.at_peak)) for h in found.held]
        parts.append(f"held\n{table(rows[:_SHOWN])}" + _more(len(rows)))
    if found.choices:
        parts.append(_choices(found.choices))
    parts.append(_moment(found.peak))
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
    for one in choices:
        if one.peak is None or one.time is None or now.peak is None or now.time is None:
            rows.append((f"  {one.what}", "-", "", "-", ""))
            continue
        change = (
            ("", "") if one is now else (_signed(one.peak - now.peak, size), _signed(one.time - now.time, duration))
        )
        rows.append((f"  {one.what}", size(one.peak), change[0], duration(one.time), change[1]))
    lines = ["what it costs", table(rows, right=(1, 2, 3, 4))]
    for one in choices:
        if len(one.operations) > 1:
            names = ", ".join(one.operations[:_SHOWN])
            rest = f" and {len(one.operations) - _SHOWN} more" if len(one.operations) > _SHOWN else ""
            lines.append(f"  {one.what}: {names}{rest}")
    return "\n".join(lines)


def _signed(amount: int, text: Any) -> str:
    return f"{'-' if amount < 0 else '+'}{text(abs(amount))}" if amount else "same"


def _moment(peak: Moment) -> str:
    rows = [(f"  {size(g.nbytes)}", f"{g.count}x", g.name, g.type) for g in peak.holders]
    title = f"the peak, {size(peak.nbytes)}, is in {peak.part} at {peak.step}"
    return f"{title}; most is held by\n{table(rows, right=(0, 1))}" if rows else title


def _overview(found: Overview) -> str:
    moment = found.peak
    rows = [("  bytes", "", "value", "type", "is", "instead", "peak", "time")]
    rows += [_costly(found, one) for one in found.costliest]
    title = f"the peak, {size(found.peak_bytes)}, is in {moment.part} at {moment.step}; what costs most there:"
    parts = [f"{title}\n{table(rows, right=(0, 1, 6, 7))}"]
    parts.append(_purchase(found, found.more) if found.more else "nothing is recomputed: more memory would buy nothing")
    return "\n\n".join(parts)


def _costly(found: Overview, one: Costly) -> tuple[str, ...]:
    change = ("not tried", "") if one.other else ("", "")
    if one.peak is not None and one.time is not None:
        change = _signed(one.peak - found.peak_bytes, size), _signed(one.time - found.time, duration)
    return (f"  {size(one.nbytes)}", f"{one.count}x", one.name, one.type, one.state, one.other or "", *change)


def _purchase(found: Overview, more: Purchase) -> str:
    title = f"{size(more.extra)} more budget"
    if not more.keep:
        return f"{title} would not let a single recomputation go"
    saved = found.time - more.time
    share = f" ({saved / found.time:.1%} of the step)" if found.time else ""
    left = "all recomputations go" if more.everything else f"{count(more.recomputes, 'recomputation')} stay"
    lines = [
        f"{title} would save {duration(saved)}{share}: peak {size(more.peak)}, {left}; kept instead of recomputation:"
    ]
    rows = [(f"  {number}x", name) for name, number in more.keep[:_SHOWN]]
    rest = len(more.keep) - _SHOWN
    return "\n".join([*lines, table(rows, right=(0,)), *([f"  … and {rest} more kinds"] if rest > 0 else [])])
