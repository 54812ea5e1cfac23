"""`remate show`: print what a schedule keeps and recomputes, its peak, time and bound; plot memory over the step."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from remate_runtime.support.platforms import platform_text

from ..present.assumptions import assumption_lines, split_lines
from ..present.outputs import gradients_of_outputs
from ..present.text import (
    PARAMETERS_NOTE,
    PEAK_NOTE,
    SHARDS_NOTE,
    count,
    duration,
    overhead,
    percent,
    plain,
    size,
    table,
)
from ..profile.devices import is_estimated
from ..profile.power import POWER, step_energy
from . import exit_codes
from .device_memory import add_optimizer, bytes_of, check_optimizer, held, verdict
from .output import PLOT, STDOUT, add_force, check_output, say, write_output
from .sizes import add_at, opened_at, parts_line, rules_line, sizes_line
from .usage import UsageError

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis

_SHOWN = 10


def configure(commands: Any) -> None:
    parser = commands.add_parser("show", help="show what a schedule keeps and recomputes", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file; -: standard input")
    parser.add_argument(
        "--plot", metavar="OUT.svg", help="file for an SVG plot of memory over the step; - for standard output"
    )
    parser.add_argument("--all", action="store_true", help=f"list everything, not only the first {_SHOWN} of a kind")
    parser.add_argument(
        "--device-memory", metavar="SIZE", type=bytes_of, help="check whether training fits a device: 24GiB"
    )
    add_optimizer(parser)
    add_force(parser)
    add_at(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..present.reserved import RESERVED_NOTE

    check_optimizer(args)
    if args.plot:
        if args.plot != STDOUT and not args.plot.lower().endswith(".svg"):
            raise UsageError(f"{args.plot}: plots are SVG files\n  hint: --plot memory.svg")
        check_output(args.plot, PLOT, args.force)
    opened = opened_at(args.schedule, args.at)
    limit = None if args.all else _SHOWN
    for part in (
        _head(opened, limit),
        figures(opened),
        *([_solved(opened, limit)] if opened.schedule.solve.parts else []),
        _blocks(opened),
        _kept(opened, limit),
        _recompute(opened, limit),
        *([_paged(opened, limit)] if opened.expanded.pages else []),
        *([_split(opened, limit)] if opened.expanded.splits else []),
    ):
        say(f"{part}\n", args.plot)
    note = PARAMETERS_NOTE if opened.linked.parameters_paged else SHARDS_NOTE if opened.graph.sharded else PEAK_NOTE
    note += f"\n{RESERVED_NOTE}" if opened.graph.device == "cuda" else ""
    say(f"{_at_peak(opened, limit)}\n\n{note}", args.plot)
    if args.plot:
        from ..present.plot import memory_plot

        write_output(args.plot, memory_plot(opened).encode())
        say(f"\nplot written to {'standard output' if args.plot == STDOUT else args.plot}", args.plot)
    if args.device_memory is None:
        return exit_codes.FINE
    assumed = opened.graph.delivered
    resident = held(args, opened.schedule.model, assumed, opened.counted_parameters > 0)
    fits, words = verdict(args, resident, opened.timeline.peak, assumed)
    say(f"\n{words}", args.plot)
    return exit_codes.FINE if fits else exit_codes.FINDINGS


def _head(opened: Analysis, limit: int | None) -> str:
    schedule, model = opened.schedule, opened.schedule.model
    mode = "training" if model.training else "evaluation"
    autocast = f", autocast {model.autocast}" if model.autocast else ""
    device = f"{model.device} ({model.architecture}, captured {model.captured})" if model.architecture else model.device
    platform = platform_text(device, model.torch, model.cuda, model.cudnn)
    lines = [plain(f"{schedule.name}: {model.name}, {mode}, {platform}{autocast}")]
    lines += [f"  {plain(line)}" for line in schedule.note.splitlines()]
    lines += [
        plain(line)
        for line in (rules_line(schedule), parts_line(schedule), gradients_of_outputs(model), sizes_line(schedule))
        if line
    ]
    lines += [plain(line) for line in assumption_lines(model, limit)]
    forward = opened.graph.backward_start
    lines.append(
        f"{count(len(opened.graph.operations), 'operation')} ({forward:,} forward), "
        f"{count(len(opened.expanded.recomputes), 'recomputation')}"
        + (f", {count(len(opened.expanded.pages), 'page')}" if opened.expanded.pages else "")
    )
    return "\n".join(lines)


def figures(opened: Analysis) -> str:
    """The table of peak and time, beside the baseline. All figures but the bound are computed again."""
    from ..present.delivered import delivered_rows
    from ..present.reserved import reserved_rows
    from ..schedule_tools.addresses import packed_height, reserved

    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.baseline
    if opened.graph.calls > 1:
        return _of_parts(opened)
    sharded = opened.graph.sharded is not None
    ours, base_reserved = (
        None if sharded else reserved(linked) for linked in (opened.linked, opened.without_recomputes)
    )
    rows = [
        ("", "schedule", "baseline", ""),
        *_peaks(opened),
        *((what, size(ours), size(base), _share(ours, base)) for what, ours, base in delivered_rows(opened)),
        *_gathered(opened),
        *(() if sharded else [_packed(packed_height(opened), timeline.peak)]),
        *(reserved_rows(ours, base_reserved, opened) if ours and base_reserved else ()),
        ("budget", size(solve.budget), "", _share(solve.budget, base.peak + opened.counted_parameters)),
        *_compiled(opened),
        *(
            ("paged to the " + to, size(nbytes), "", "held to the end of the step")
            for to, nbytes in timeline.paged.items()
        ),
        ("time", duration(timeline.time), duration(base.time), overhead(timeline.time, base.time)),
        *_waiting(opened),
        *_energy(opened),
    ]
    return _with_solve(opened, rows)


def _peaks(opened: Analysis) -> list[tuple[str, str, str, str]]:
    """The row of the peak. If parameters are paged, both columns include them."""
    peak, base = opened.timeline.peak, opened.baseline.peak + opened.counted_parameters
    return [
        ("peak, with parameters" if opened.counted_parameters else "peak", size(peak), size(base), _share(peak, base))
    ]


def _gathered(opened: Analysis) -> list[tuple[str, str, str, str]]:
    """A row for each purpose of FSDP2: the most bytes at once. They are part of the peak if they are used then."""
    from ..schedule_tools.analysis import most_gathered

    ours, base = most_gathered(opened, opened.linked), most_gathered(opened, opened.without_recomputes)
    return [
        (f"  {purpose}, at most", size(nbytes), size(before), "")
        for (purpose, nbytes), (_, before) in zip(ours, base, strict=True)
    ]


def _packed(packed: int, peak: int) -> tuple[str, str, str, str]:
    over = "" if packed == peak else f"{overhead(packed, peak)} on the peak"
    return "peak, packed into one block", size(packed), "", over


def _waiting(opened: Analysis) -> list[tuple[str, str, str, str]]:
    """A row per lane: how long the step waits for it."""
    return [
        (
            f"  waiting, {lane.memory} {lane.direction}",
            duration(lane.stall),
            "",
            f"the lane moves {size(lane.nbytes)} in {count(lane.copies, 'copy', 'copies')}, {duration(lane.busy)}",
        )
        for lane in opened.timeline.lanes
    ]


def _energy(opened: Analysis) -> list[tuple[str, str, str, str]]:
    """The energy of a step, if it was planned for a device with figures of power."""
    settings = opened.schedule.solve.settings
    if settings is None or settings.power not in POWER:
        return []
    power = POWER[settings.power]
    ours, base = (step_energy(timeline, power) for timeline in (opened.timeline, opened.baseline))
    return [
        (
            "energy on " + settings.power,
            f"{ours:.4g} J",
            f"{base:.4g} J",
            f"{(ours / base - 1) * 100:+.2f}%" if base else "",
        )
    ]


def _compiled(opened: Analysis) -> list[tuple[str, str, str, str]]:
    compiled, base = opened.schedule.solve.compiled, opened.baseline.peak
    if compiled is None:
        return []
    rows = [
        (
            "peak, compiled",
            "unknown" if compiled.peak is None else size(compiled.peak),
            "",
            _share(compiled.peak or 0, base),
        )
    ]
    return [*rows, ("budget, compiled", size(compiled.budget), "", _share(compiled.budget, base))]


def _of_parts(opened: Analysis) -> str:
    """The same table for a file of parts. Reserved memory is left out: it depends on the rest of the model."""
    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.baseline
    own, other = timeline.device.peak, base.device.peak
    rows = [
        ("", "schedule", "baseline", ""),
        ("peak of all calls", size(timeline.peak), size(base.peak), _share(timeline.peak, base.peak)),
        ("  of one call", size(own), size(other), _share(own, other)),
        ("  of the others, beside it", size(timeline.beside), size(base.beside), _share(timeline.beside, base.beside)),
        ("budget", size(solve.budget), "", _share(solve.budget, base.peak)),
        ("gradients", opened.graph.delivered, "", "as planned for"),
        ("time of one call", duration(timeline.time), duration(base.time), overhead(timeline.time, base.time)),
    ]
    return _with_solve(opened, rows)


def _with_solve(opened: Analysis, rows: list[tuple[str, str, str, str]]) -> str:
    from ..schedule_tools.figures import bounded, proven_of

    solve, base = opened.schedule.solve, opened.baseline
    if solve.lower_bound is not None and bounded(opened):
        kind = proven_of(solve.settings)
        note = f", of {kind}" * ("paging" in kind) + ", of estimates" * is_estimated(solve.cost)
        rows.append(
            (f"time, proven bound{note}", duration(solve.lower_bound), "", overhead(solve.lower_bound, base.time))
        )
    gap = "" if solve.gap is None else f", at most {percent(solve.gap)} of the baseline time above the fastest"
    text = table(rows, right=(1, 2))
    solved = f"solved by {solve.strategy} ({solve.solver}), stopped by {solve.stopped_by}, {solve.cost} costs{gap}"
    return f"{text}\n{plain(solved)}"


def _solved(opened: Analysis, limit: int | None) -> str:
    """The tree of parts of a hierarchical strategy."""
    parts = opened.schedule.solve.parts
    rows = [("part", "", "operations", "plans", "recomputed", "solver")]
    for part in parts if limit is None else parts[: 2 * limit]:
        name = f"{'  ' * min(part.level, 8)}{part.part or 'whole step'}"
        plans = f"{part.plans}" if part.level else ""
        times = f"{part.count} x" if part.count > 1 else ""
        rows.append((plain(name), times, f"{part.operations:,}", plans, duration(part.time), plain(part.solver)))
    more = len(parts) - len(rows) + 1
    text = table(rows, right=(1, 2, 3, 4))
    return f"{text}\n… and {more} more (--all)" if more else text


def _share(part: int, whole: int) -> str:
    return f"{percent(part / whole, 1)} of the baseline" if whole else ""


def _blocks(opened: Analysis) -> str:
    schedule = opened.schedule
    uses: Counter[tuple[str, str]] = Counter((i.block, i.plan) for i in schedule.program)
    for block in schedule.blocks.values():
        uses.update((i.block, i.plan) for i in block.instances)
    rows = [("block", "plan", "used", "forward", "backward")]
    for (name, plan), used in sorted(uses.items()):
        block = schedule.blocks[name]
        inside = count(len(block.instances), "instance")
        forward, backward = (inside, "") if block.instances else (str(len(block.forward)), str(len(block.backward)))
        rows.append((name, plan, f"{used}x", forward, backward))
    return table(rows, right=(2, 3, 4))


def _kept(opened: Analysis, limit: int | None) -> str:
    from ..schedule_tools.analysis import grouped, held_at

    total = sum(h.nbytes for h in held_at(opened, opened.timeline.backward_start))
    rows = [(size(g.nbytes), f"{g.count}x", g.name, g.type) for g in grouped(opened, opened.timeline.backward_start)]
    return _listed(f"held when backward starts: {size(total)}", rows, limit)


def _recompute(opened: Analysis, limit: int | None) -> str:
    from ..schedule_tools.analysis import recomputing

    recomputations = recomputing(opened)
    if not recomputations:
        return "recomputations: none, every value is kept until its last use"
    rows = [(duration(r.ns), f"{r.count}x", r.name, r.operator) for r in recomputations]
    return _listed(f"recomputations: {duration(sum(r.ns for r in recomputations))}", rows, limit)


def _paged(opened: Analysis, limit: int | None) -> str:
    from remate_runtime.link import PageBack, PageOut

    from ..schedule_tools.analysis import paging

    rows = [(size(g.nbytes), f"{g.count}x", g.name, f"to the {g.to}") for g in paging(opened)]
    leaving = {event.value for event in opened.linked.events if isinstance(event, PageOut | PageBack)}
    without = sum(page.value not in leaving for page in opened.expanded.pages)
    title = f"paged: {size(sum(g.nbytes for g in paging(opened)))}, {duration(opened.timeline.stall)} of waiting"
    return _listed(title + (f"; {count(without, 'page')} without effect" if without else ""), rows, limit)


def _split(opened: Analysis, limit: int | None) -> str:
    from ..schedule_tools.analysis import split_effects, splitting

    rows = [(f"{split.into}x", "", name) for split in splitting(opened) for name in split.operations]
    effects = split_effects(opened)
    lines = split_lines(effects.reordered, effects.rounded, limit)
    return "\n".join([_listed("split along rows:", rows, limit), *map(plain, lines)])


def _at_peak(opened: Analysis, limit: int | None) -> str:
    from ..schedule_tools.analysis import grouped, operation_at

    timeline = opened.timeline
    if not timeline.during:
        return "the step has no operations"
    rows = [(size(g.nbytes), f"{g.count}x", g.name, g.type) for g in grouped(opened, timeline.peak_at)]
    where = "forward" if timeline.peak_at < timeline.backward_start else "backward"
    return _listed(f"at the peak, in {where}, at {operation_at(opened, timeline.peak_at)}:", rows, limit)


def _listed(title: str, rows: list[tuple[str, ...]], limit: int | None) -> str:
    shown = rows[:limit]
    text = title if not rows else f"{title}\n{table(shown, right=(0, 1), indent='  ')}"
    rest = len(rows) - len(shown)
    return text + (f"\n  … and {rest} more (--all)" if rest else "")
