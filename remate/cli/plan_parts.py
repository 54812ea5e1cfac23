"""`remate plan --at`: parts of a model in place of the whole; one file for each kind of part."""

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
    """Plan and write what `--at` names. gpu, or_smallest: as of `api.parts`. Raises UsageError where there are several
    kinds, and no folder to write to."""
    if args.device_memory:
        raise UsageError(
            "--device-memory is for whole models: what the rest of this one holds beside its parts is not known"
            "\n  hint: give the parts a --budget of their own"
        )
    from msgspec.structs import replace

    from remate_runtime.format import checked_text

    from ..api.parts import plan_parts, prepare_parts
    from ..api.settings import refuse_for_parts
    from .progress import Reporter

    refuse_for_parts(replace(options, dims=None if args.dims == ["none"] else args.dims, fill=args.fill))
    with Reporter(args.quiet) as report:
        parts = prepare_parts(target.call, args.at, args.cost, options, gpu, report)
        paths = _outputs(args, parts)
        with Finishing():
            named = args.name or (Path(paths[0]).stem if len(paths) == 1 and paths[0] != STDOUT else "")
            names = {"name": named, "note": args.note}
            made = plan_parts(parts, settings, args.cost, **names, or_smallest=or_smallest, progress=report)
            for path, one in zip(paths, made, strict=True):
                write_output(path, checked_text(one), rescue=True)
    if not args.quiet:
        say("\n".join(_summary(list(made), paths, made.peak_bytes)), args.output)
        if args.output != STDOUT:
            model = shlex.quote(args.target)
            say(f"next: remate_runtime.apply(model, {args.output!r})   # the model that {model} makes, as a whole")


def _outputs(args: argparse.Namespace, parts: list[PartKind]) -> list[str]:
    """Where each schedule is written: the file that was named, or files of a folder."""
    folder = Path(args.output)
    is_folder = args.output != STDOUT and (args.output.endswith("/") or folder.is_dir())
    if len(parts) > 1 and not is_folder:
        raise UsageError(
            f"the parts do {len(parts)} different steps, each with a schedule of its own:\n  "
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


def _summary(made: list[Schedule], paths: list[str], together: int) -> list[str]:
    rows = []
    for path, one in zip(paths, made, strict=True):
        solve, calls = one.solve, one.model.calls
        each = f", each {count(calls, 'call')}" if calls > 1 else ""
        over = overhead(solve.time, solve.baseline_time, "no cost")
        peak = f"{size(solve.peak)} of {size(solve.baseline_peak)}"
        rows.append((plain(path), plain(", ".join(one.model.at)) + each, peak, over))
    heads = [("file", "for", "peak of all its calls", "time")]
    told = [table([*heads, *rows], right=(3,))]
    if len(made) > 1:
        told.append(f"peak of all parts together: {size(together)}")
    told.append("the rest of the model holds its own beside that")
    return told
