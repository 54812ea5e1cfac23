"""`remate plan --at`: plans parts of a model instead of the whole, one file for each kind of part."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..interrupts import Finishing
from ..present.text import count, overhead, plain, size, table
from .output import SCHEDULE, STDOUT, check_output, say, write_output
from .usage import UsageError

if TYPE_CHECKING:
    from remate_runtime.format import Schedule, Settings

    from ..api.options import PlanOptions
    from ..api.parts import PartKind
    from ..profile.devices import Device
    from .build_file import Target

_SHOWN = 6  # paths of one kind


def plan_parts(
    args: argparse.Namespace,
    target: Target,
    settings: Settings,
    options: PlanOptions,
    gpu: Device | None,
    *,
    or_smallest: bool,
) -> None:
    """Plan the parts of `--at` and write their files.

    Args:
        args: The command line.
        target: The model and its inputs.
        settings: Settings to record in the files.
        options: Options of planning.
        gpu: A GPU to plan for that this machine need not have.
        or_smallest: Plan the smallest peak if the budget is below it.

    Raises:
        UsageError: There are several kinds of parts, and -o is not a folder.
    """
    if args.device_memory:
        raise UsageError(
            "--device-memory is for whole models: the memory of the rest of this model is unknown"
            "\n  hint: use --budget for the parts"
        )
    from msgspec.structs import replace

    from remate_runtime.format import checked_text

    from ..api.parts import plan_parts, prepare_parts
    from ..api.settings import refuse_for_parts
    from ..api.tried_parts import proposing_what_works
    from .progress import Reporter

    refuse_for_parts(replace(options, dims=None if args.dims == ["none"] else args.dims, fill=args.fill))
    with Reporter(args.quiet) as report, proposing_what_works(target.call, options, gpu):
        parts = prepare_parts(target.call, args.at, args.cost, options, gpu, report)
        paths = _outputs(args, parts)
        with Finishing():
            name = args.name or (Path(paths[0]).stem if len(paths) == 1 and paths[0] != STDOUT else "")
            schedules = plan_parts(
                parts, settings, args.cost, name=name, note=args.note, or_smallest=or_smallest, progress=report
            )
            for path, schedule in zip(paths, schedules, strict=True):
                write_output(path, checked_text(schedule), rescue=True)
    if not args.quiet:
        say("\n".join(_summary(list(schedules), paths, schedules.peak_bytes)), args.output)
        if args.output != STDOUT:
            model = shlex.quote(args.target)
            say(f"next: remate_runtime.apply(model, {args.output!r})   # model: the whole model of {model}")


def _outputs(args: argparse.Namespace, parts: list[PartKind]) -> list[str]:
    """The path of each schedule: the file of -o, or files in the folder of -o."""
    folder = Path(args.output)
    is_folder = args.output != STDOUT and (args.output.endswith("/") or folder.is_dir())
    if len(parts) > 1 and not is_folder:
        raise UsageError(
            f"the parts have {len(parts)} different steps, and each needs a file:\n  "
            + "\n  ".join(plain(", ".join(part.paths[:_SHOWN])) for part in parts)
            + "\n  hint: name a folder to write to: -o blocks/"
        )
    if not is_folder:
        return [args.output]
    folder.mkdir(parents=True, exist_ok=True)
    from ..api.parts import names_of

    paths = [str(folder / f"{name}.json") for name in names_of(parts, args.name)]
    for path in paths:
        check_output(path, SCHEDULE, args.force)
    return paths


def _summary(schedules: list[Schedule], paths: list[str], together: int) -> list[str]:
    rows: list[tuple[str, str, str, str]] = []
    for path, schedule in zip(paths, schedules, strict=True):
        solve, calls = schedule.solve, schedule.model.calls
        each = f", each {count(calls, 'call')}" if calls > 1 else ""
        over = overhead(solve.time, solve.baseline_time, "no cost")
        peak = f"{size(solve.peak)} of {size(solve.baseline_peak)}"
        rows.append((plain(path), plain(", ".join(schedule.model.at)) + each, peak, over))
    heads = [("file", "for", "peak of all its calls", "time")]
    lines = [table([*heads, *rows], right=(3,))]
    if len(schedules) > 1:
        lines.append(f"peak of all parts together: {size(together)}")
    lines.append("the rest of the model needs memory beside that")
    return lines
