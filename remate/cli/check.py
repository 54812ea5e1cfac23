"""`remate check`: validate schedule files, compute their peak and time, and compare them with the live model.

With `--format json`, one file gives an object and several files give an array.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from remate_runtime.extras import require

from ..present.assumptions import split_lines
from ..present.text import count, overhead, percent, plain, size
from . import exit_codes
from .inputs import data_of
from .output import say, say_aside
from .several import Report, each
from .sizes import add_at, checked_at, parts_line, range_lines, rules_line, size_line, sizes_line
from .usage import UsageError, stale_hint

if TYPE_CHECKING:
    from remate_runtime.format import Solve

    from ..capture.captured import Captured
    from ..profile.devices import Device
    from ..schedule_tools.analysis import Analysis
    from ..schedule_tools.staleness import StalenessCause
    from .build_file import Target

_SHOWN = 20


def configure(commands: Any) -> None:
    parser = commands.add_parser("check", help="check schedule files, or whether they fit a model", description=__doc__)
    parser.add_argument("schedules", metavar="S.json", nargs="+", help="schedule files; -: standard input")
    parser.add_argument(
        "--model", metavar="FILE.py:build", help="also compare with the model that this function builds"
    )
    parser.add_argument(
        "--step", action="store_true", help="with --model: also run one step and compare its results with eager PyTorch"
    )
    parser.add_argument(
        "--allow", metavar="NAME", nargs="+", default=(), help="libraries whose operators --step may run"
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="also predict the peak of the step as this engine executes it (arena, compiled, auto)",
    )
    parser.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="with --engine: predict for CUDA graphs, including their private pool and the copies out of it",
    )
    parser.add_argument(
        "--format", choices=("text", "json", "github"), default="text", help="how faults are printed (default: text)"
    )
    parser.add_argument("--quiet", action="store_true", help="print findings only")
    add_at(parser, "also check this size against the budget, for a schedule with named sizes")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.model:
        require("remate check --model", "torch")
    if args.step and not args.model:
        raise UsageError("--step needs a model\n  hint: add --model FILE.py:build")
    if args.engine and args.format != "text":
        raise UsageError("--engine works with text output only\n  hint: remove --format or --engine")
    if args.at and args.format != "text":
        raise UsageError("--at works with text output only\n  hint: remove --format or --at")
    if args.cuda_graphs and not args.engine:
        raise UsageError("--cuda-graphs needs an engine\n  hint: add --engine compiled or --engine eager")
    if args.engine:
        require("remate check --engine", "torch")
    allowed = tuple(args.allow)
    model = _Model(args.model, args.step, allowed) if args.model else None
    with Report(args.format, len(args.schedules) > 1) as report:
        return each(
            args.schedules,
            lambda path: _check(
                path, model, report, args.quiet, _Executed(args.engine, allowed, args.cuda_graphs), args.at
            ),
        )


def _check(
    path: str, model: _Model | None, report: Report, quiet: bool, executed: _Executed, at: Mapping[str, int]
) -> int:
    from remate_runtime.errors import ScheduleError
    from remate_runtime.format import locate

    from ..schedule_tools.analysis import open_text
    from ..schedule_tools.check import findings
    from ..schedule_tools.schema_check import schema_faults
    from ..schedule_tools.sizes import faults_at_corners

    data = data_of(path)
    try:
        opened = open_text(data)
    except ScheduleError as error:
        return report.faults(path, data, error.faults)
    text = data.decode()
    faults = [*schema_faults(text), *findings(opened, text, path)]
    faults += locate(text, faults_at_corners(opened.schedule)) if opened.schedule.model.dims else []
    stale = model.differences(opened, sound=not faults) if model else []
    if report.form != "text":
        return report.faults(
            path, data, [*faults, *(cause.fault(stale_hint(path, model.target)) for cause in stale if model)]
        )
    if faults:
        report.faults(path, data, faults)
    elif not quiet:
        say(_summary(path, opened))
    over = not faults and (executed.is_over(opened, quiet) | _over_at(path, opened, at, quiet))
    if model and stale:
        say_aside(_stale(path, model.target, stale))
    elif model and not quiet:
        say(
            f"{path}: fits {model.target}"
            + (", and one step gives the same results" if model.step and not faults else "")
        )
    return exit_codes.STALE if stale else exit_codes.FINDINGS if faults or over else exit_codes.FINE


def _summary(path: str, opened: Analysis) -> str:
    from ..present.delivered import delivered_line
    from ..present.reserved import reserved_lines
    from ..schedule_tools.addresses import reserved

    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.baseline
    held = base.peak + opened.counted_parameters
    ours = reserved(opened.linked) if opened.graph.calls == 1 else None
    operations, recomputes = len(opened.graph.operations), len(opened.expanded.recomputes)
    instances = count(len(opened.schedule.program), "instance")
    pages = f", {count(len(opened.expanded.pages), 'page')}" if opened.expanded.pages else ""
    everywhere, sizes = _range(opened)
    over = f"{overhead(timeline.time, base.time)} over the baseline" if base.time else "no costs recorded"
    return "\n".join(
        [
            f"{path}: valid" + ("" if everywhere else " as planned; larger sizes are over the budget"),
            *_sizes(opened),
            *_parts(opened),
            f"  {count(operations, 'operation')}, {instances} of {count(len(opened.schedule.blocks), 'block')}, "
            f"{count(recomputes, 'recomputation')}{pages}",
            f"  peak {size(timeline.peak)}, within the budget of {size(solve.budget)}; baseline {size(held)}"
            + (f" ({percent(timeline.peak / held, 1)})" if held else "")
            + ", with parameters, because some are paged" * bool(opened.counted_parameters),
            f"  {delivered_line(opened)}",
            *(f"  {line}" for line in (reserved_lines(ours, opened) if ours else ())),
            *_compiled(solve),
            f"  predicted time {over}",
            *_splits(opened),
            *sizes,
        ]
    )


def _splits(opened: Analysis) -> list[str]:
    from ..schedule_tools.analysis import split_effects

    if not opened.expanded.splits:
        return []
    effects = split_effects(opened)
    return [f"  {plain(line)}" for line in split_lines(effects.reordered, effects.rounded, _SHOWN)]


def _parts(opened: Analysis) -> list[str]:
    lines = (parts_line(opened.schedule), rules_line(opened.schedule))
    return [f"  {plain(line)}" for line in lines if line]


def _compiled(solve: Solve) -> list[str]:
    """The line about compiled execution, if it was planned for."""
    requested = solve.compiled
    if requested is None:
        return []
    predicted = (
        "peak unknown, --engine compiled predicts it" if requested.peak is None else f"peak {size(requested.peak)}"
    )
    return [f"  planned for compiled execution within {size(requested.budget)}: {predicted}"]


def _sizes(opened: Analysis) -> list[str]:
    line = sizes_line(opened.schedule)
    return [f"  {plain(line)}"] if line else []


def _over_at(path: str, opened: Analysis, at: Mapping[str, int], quiet: bool) -> bool:
    """Whether the size of --at is over the budget. Prints its peak."""
    if not at:
        return False
    from remate_runtime.format import checked_size

    from ..schedule_tools.sizes import evaluated

    checked_at(path, opened.schedule, at)
    evaluation, budget = (
        evaluated(opened.schedule, checked_size(opened.schedule.model, at)),
        opened.schedule.solve.budget,
    )
    if evaluation.peak > budget or not quiet:
        say(size_line(evaluation, budget))
    return evaluation.peak > budget


def _range(opened: Analysis) -> tuple[bool, list[str]]:
    """Whether the budget holds at every size, and the lines that describe the range."""
    if not opened.schedule.model.dims:
        return True, []
    from ..schedule_tools.sizes import over_range

    budgeted = over_range(opened.schedule)
    return budgeted.everywhere, range_lines(budgeted)


class _Executed(NamedTuple):
    """The engine of --engine. engine: None if no prediction is requested."""

    engine: str | None
    allowed: tuple[str, ...]
    cuda_graphs: bool

    def is_over(self, opened: Analysis, quiet: bool) -> bool:
        """Whether the engine will exceed the budget. Prints the predicted peak."""
        if self.engine is None:
            return False
        peak, budget = self._peak(opened), opened.schedule.budget_of(self.engine)
        if peak > budget or not quiet:
            place = "within" if peak <= budget else "over"
            how = " in CUDA graphs" if self.cuda_graphs else ""
            say(f"  executed by {self.engine}{how}: predicted peak {size(peak)}, {place} the budget of {size(budget)}")
        return peak > budget

    def _peak(self, opened: Analysis) -> int:
        import warnings

        from remate_runtime.applied import peak_by_engine

        assert self.engine is not None
        with warnings.catch_warnings(action="ignore"):  # the caller reports them
            return peak_by_engine(opened.schedule, self.engine, self.allowed, self.cuda_graphs)


class _Model:
    """The model of `FILE.py:build`, captured once for all files with the same settings."""

    def __init__(self, target: str, step: bool, allowed: tuple[str, ...]) -> None:
        self.target, self.step, self._allowed = target, step, allowed
        self._built: Any = None
        self._captured: dict[tuple[tuple[str, ...], tuple[str, ...], bool, str | None], Captured] = {}

    def differences(self, opened: Analysis, sound: bool) -> list[StalenessCause]:
        """Compare the live model with the file. sound: the file has no faults, so its step may run."""
        from remate_runtime.errors import BindError
        from remate_runtime.format import output_leaves

        from ..api.elsewhere import gpu_of_file
        from ..schedule_tools.staleness import StalenessCause, differences, digest_differences

        recorded = opened.schedule.model
        used = tuple(leaf.differentiate for leaf in output_leaves(recorded.outputs) if leaf.grad)
        if recorded.at:
            from ..api.elsewhere import on_device
            from ..schedule_tools.part_staleness import part_differences

            with on_device(gpu_of_file(opened.schedule), self._target().call) as call:
                causes = part_differences(opened, call, used)
            return causes or (self._beside(opened) if self.step and sound else [])
        gpu = gpu_of_file(opened.schedule)
        key = used, tuple(recorded.live), bool(recorded.dims), gpu and gpu.name
        if key not in self._captured:
            self._captured[key] = self._capture(*key[:3], gpu)
        live = self._captured[key]
        try:
            here = self._at_the_same_size(opened, live)
        except BindError as error:
            return [StalenessCause("size of the inputs", "in range", str(error).splitlines()[0])]
        with self._built.call.in_effect():
            causes = [
                *digest_differences(opened.schedule, self._built.model),
                *differences(here.schedule.model, live.model, here.expanded.unsplit, live.graph),
            ]
            return causes or (self._beside(opened) if self.step and sound else [])

    @staticmethod
    def _at_the_same_size(opened: Analysis, live: Captured) -> Analysis:
        """The schedule at the size of the captured model."""
        if not opened.schedule.model.dims:
            return opened
        from remate_runtime.format import at_size

        from ..schedule_tools.analysis import analyse
        from ..schedule_tools.sizes import size_of

        return analyse(at_size(opened.schedule, size_of(opened.schedule.model, live.model)))

    def _beside(self, opened: Analysis) -> list[StalenessCause]:
        from remate_runtime import StaleModelError, apply

        from ..schedule_tools.staleness import StalenessCause

        built = self._built
        try:
            apply(built.model, opened.schedule, namespaces=self._allowed, verify=(built.args, built.kwargs))
        except StaleModelError as error:
            differing = [line.removeprefix("  - ") for line in str(error).splitlines() if line.startswith("  - ")]
            return [StalenessCause("one step", "as planned", "; ".join(differing) or str(error))]
        return []

    def _target(self) -> Target:
        from .build_file import load_target

        self._built = load_target(self.target)
        return self._built

    def _capture(self, used: tuple[str, ...], attributes: tuple[str, ...], sized: bool, gpu: Device | None) -> Captured:
        from ..api.elsewhere import on_device
        from ..errors import CaptureError
        from ..live_attributes.capturing import captured

        with on_device(gpu, self._target().call) as call, call.in_effect():
            options: Any = {"probing": False, "stepwise": sized}
            try:
                return captured(call.model, call.args, call.kwargs, list(used), attributes, **options)
            except CaptureError:  # another model may have neither these outputs nor these attributes
                return captured(call.model, call.args, call.kwargs, None, (), **options)


def _stale(path: str, model: str, causes: list[StalenessCause]) -> str:
    lines = [f"{path}: stale, {model} differs in {count(len(causes), 'point')}"]
    for cause in causes[:_SHOWN]:
        lines += [
            f"  {plain(cause.what)}",
            f"    in the file:   {plain(cause.file)}",
            f"    in the model:  {plain(cause.live)}",
        ]
    if len(causes) > _SHOWN:
        lines.append(f"  … and {len(causes) - _SHOWN} more")
    return "\n".join([*lines, f"hint: {stale_hint(path, model)}"])
