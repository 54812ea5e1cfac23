"""`remate run`: train some steps with a schedule and with eager PyTorch, and compare peak, time and gradients."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require

from ..present.text import count, duration, overhead, plain, size, table
from . import exit_codes
from .output import MEMORY_TRACE, add_force, check_output, say, say_aside, write_output, written
from .sizes import add_at, checked_at
from .usage import UsageError, stale_hint

if TYPE_CHECKING:
    from remate_runtime.format import Schedule

    from ..step_measurement.allocator import MemoryCurve
    from ..step_measurement.beside_eager import Trial
    from .build_file import Target

    Call = tuple[Sequence[Any], Mapping[str, Any]]

_SHOWN = 8  # gradients that differ
_BUCKETS = 2000  # of a written curve: at most four points each
DRY = (
    "run one step without kernels, on tensors without memory: checks types, layouts, storages and the peak for the "
    "schedule's device, which this machine need not have; engines eager, arena and compiled"
)


def configure(commands: Any) -> None:
    parser = commands.add_parser("run", help="train with a schedule, beside eager PyTorch", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file")
    parser.add_argument(
        "--model", metavar="FILE.py:build", required=True, help="function that returns (model, args[, kwargs])"
    )
    parser.add_argument("--steps", metavar="N", type=_positive, default=10, help="number of SGD steps; default: 10")
    parser.add_argument("--lr", metavar="RATE", type=float, default=0.01, help="learning rate; default: 0.01")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; default: the schedule's device class")
    parser.add_argument("--threads", metavar="N", type=_positive, help="threads of torch on the CPU")
    parser.add_argument(
        "--memory-trace",
        metavar="OUT.json",
        help="file for the measured memory curve, for `remate report`; - for standard output",
    )
    parser.add_argument("--allow", metavar="NAME", nargs="+", default=(), help="libraries whose operators may run")
    parser.add_argument(
        "--engine",
        metavar="NAME",
        default="eager",
        help="what executes the schedule: eager (default), arena, compiled or auto",
    )
    parser.add_argument("--dry", action="store_true", help=DRY)
    parser.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="with --dry: record the step as apply(..., cuda_graphs=True) does, replay it, and check what replays read",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_at(parser)
    add_force(parser)
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def run(args: argparse.Namespace) -> int:
    require("remate run", "torch")
    from remate_runtime.format import load

    from .device import loaded
    from .progress import Reporter

    if args.memory_trace:
        check_output(args.memory_trace, MEMORY_TRACE, args.force)
    schedule = load(args.schedule)
    if args.dry:
        return _dry(args, schedule)
    if args.cuda_graphs:
        raise UsageError("--cuda-graphs is for dry runs\n  hint: add --dry")
    target = loaded(args.model, args.device or schedule.model.device, args.threads, args.quiet)
    checked_at(args.schedule, schedule, args.at)
    call, dims, plain = _sized(schedule, target, args.at)
    from ..step_measurement.beside_eager import try_schedule

    with Reporter(args.quiet) as report:
        options: dict[str, Any] = {"namespaces": args.allow, "engine": args.engine, "dims": dims}
        options["curve"] = args.memory_trace is not None
        with target.call.in_effect(cast=False):
            trial = try_schedule(target.model, *call, schedule, args.steps, args.lr, report, **options)
    say(measured(trial, plain, args.engine), args.memory_trace)
    if args.memory_trace and trial.curve:
        _write_trace(args.memory_trace, plain, trial.curve)
    if trial.beyond:
        say_aside(_stale(args.schedule, args.model, trial.beyond))
        return exit_codes.STALE
    over = trial.peak - trial.loss > schedule.budget_of(args.engine) and not schedule.model.at
    return exit_codes.FINDINGS if over else exit_codes.FINE


def _dry(args: argparse.Namespace, schedule: Schedule) -> int:
    from ..api.dry_run import ENGINES

    if args.device or args.memory_trace:
        raise UsageError("--dry uses the device of the schedule\n  hint: remove --device and --memory-trace")
    if args.engine not in ENGINES:
        raise UsageError(
            f"--dry runs the engines {', '.join(ENGINES)}, and not {args.engine}\n  hint: --engine compiled"
        )
    if schedule.model.at:
        raise UsageError(
            "--dry is for schedules of whole models, and this one is for parts of a model\n  hint: remove --dry"
        )
    from .device import loaded

    target = loaded(args.model, None, args.threads, args.quiet)
    checked_at(args.schedule, schedule, args.at)
    call, _, plain = _sized(schedule, target, args.at)
    from ..api.dry_run import dry_run
    from ..api.elsewhere import on_device_of
    from ..capture.recorded import RecordedCall

    with (
        on_device_of(schedule, RecordedCall.of(target.model, *call, target.state)) as dry_call,
        dry_call.in_effect(cast=False),
    ):
        result = dry_run(dry_call, plain, args.allow, args.engine, args.cuda_graphs)
    verdict = f"predicted {size(result.predicted)} ({result.peak - result.predicted:+,} bytes)"
    if result.states is not None:
        verdict = "as predicted" + (f", but for {count(result.states, 'state')} of generators" if result.states else "")
    # A compiled function may free an input earlier than predicted, and the prediction of CUDA graphs is a limit.
    below = (args.engine == "compiled" or args.cuda_graphs) and result.peak < result.predicted
    how = f"engine {args.engine}"
    if args.cuda_graphs:
        how += f" in {count(result.graphs, 'CUDA graph')}" if result.graphs else ", without CUDA graphs"
    device = plain.model.device + (f" ({plain.model.architecture})" if plain.model.architecture else "")
    say(
        f"{args.schedule}: {result.operations:,} operations ran dry for {device} by {how}: "
        f"{count(result.gradients, 'gradient')}\n"
        f"peak of storages {size(result.peak)}, {verdict}; without workspaces of kernels "
        f"({size(result.workspaces)} of the predicted peak)"
    )
    unrecorded = args.cuda_graphs and not result.graphs
    return exit_codes.FINDINGS if unrecorded or (result.states is None and not below) else exit_codes.FINE


def _sized(schedule: Schedule, target: Target, dims: Mapping[str, int]) -> tuple[Call, Mapping[str, int], Schedule]:
    """Return the call to run, its size, and the schedule at that size.

    At a requested size the inputs are random. Otherwise they come from the user's function.
    """
    call: Call = (target.args, target.kwargs)
    if not (schedule.model.dims or dims):
        return call, {}, schedule
    import torch

    from remate_runtime.bind import CallSizes
    from remate_runtime.format import at_size
    from remate_runtime.staleness import example_call

    from ..schedule_tools.sizes import schedule_at

    device = next(iter([*target.model.parameters(), *target.model.buffers()]), torch.empty(0)).device
    if dims:
        call = example_call(target.model, at_size(schedule, dims).model, device)
    else:
        dims = CallSizes(schedule.model, target.model.forward).of(tuple(target.args), target.kwargs, device)
    return call, dims, schedule_at(schedule, dims)


def _stale(path: str, model: str, beyond: Sequence[str]) -> str:
    shown = [f"  {plain(name)}" for name in beyond[:_SHOWN]]
    more = [f"  … and {len(beyond) - _SHOWN} more"] if len(beyond) > _SHOWN else []
    verdict = f"{path}: stale, its first step differs from that of {model} by more than rounding"
    return "\n".join([verdict, *shown, *more, f"hint: {stale_hint(path, model)}"])


def _write_trace(path: str, schedule: Schedule, curve: MemoryCurve) -> None:
    from remate_runtime.display import thin

    from ..step_measurement.memory_trace import encode, memory_trace

    times, levels = thin(curve.times, curve.bytes, _BUCKETS)
    write_output(path, encode(memory_trace(schedule, curve.backward_start, times, levels)))
    say(written(path, ", memory over a step of the schedule"), path)


def measured(trial: Trial, schedule: Schedule, engine: str) -> str:
    """The table that `run` prints. engine: the engine that executed the schedule."""
    rows = [
        ("", "eager", "schedule", "schedule / eager"),
        ("measured peak", size(trial.eager_peak), size(trial.peak), _ratio(trial.peak, trial.eager_peak)),
        (
            "step time, median",
            duration(median(trial.eager_times)),
            duration(median(trial.times)),
            f"{trial.ratio:.3f}",
        ),
    ]
    lines = [
        table(rows, right=(1, 2, 3)),
        _predicted(trial, schedule, schedule.budget_of(engine)),
        *_assumed(schedule),
        *([f"both peaks count parameters, {size(trial.parameters)}: some are paged"] if trial.parameters else []),
        *_paged(trial),
        f"time ratio: median of {count(len(trial.times), 'pair')} of alternating steps; {_spread(trial.ratios)}",
        f"largest gradient difference: {gradient_difference(trial)}",
    ]
    if trial.parted:
        from remate_runtime.staleness import BEYOND_EAGER

        names = [plain(name) for name in trial.parted[:_SHOWN]]
        lines.append(f"{BEYOND_EAGER} {'; '.join(names)}: the order of summation may differ")
    lines.append(f"loss: {trial.losses[0]:.6g} in the first step, {trial.losses[-1]:.6g} in the last")
    return "\n".join(lines)


def _assumed(schedule: Schedule) -> list[str]:
    """How gradients were used during measurement, if not retained."""
    kind = schedule.solve.gradients
    how = {"accumulated": "added to a .grad that exists", "consumed": "freed as an optimizer in backward does"}
    return [f"gradients {kind}: both peaks with gradients {how[kind]}"] if kind in how else []


def _paged(trial: Trial) -> list[str]:
    """Measured paging, with the prediction."""
    return [
        f"paged {lane.direction}: {size(lane.nbytes)} in a step (predicted {size(lane.predicted_nbytes)}), "
        f"waited for {duration(lane.waited)} (predicted {duration(lane.predicted_wait)})"
        for lane in trial.lanes
    ]


def _predicted(trial: Trial, schedule: Schedule, budget: int) -> str:
    if schedule.model.at:
        return (
            f"predicted peak of its parts {size(trial.predicted)}, of a budget of {size(budget)}; without "
            f"recomputation {size(schedule.baseline_peak_bytes)}. The rest of the model needs memory beside that"
        )
    return (
        f"predicted peak {size(trial.predicted)} ({_off(trial.peak, trial.predicted)}), "
        f"budget {size(budget)}: {_verdict(trial.peak - trial.loss, budget)}"
    )


def _spread(ratios: Sequence[float]) -> str:
    if len(ratios) < 4:
        return f"range {min(ratios):.3f} to {max(ratios):.3f}"
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return f"quartiles {low:.3f} to {high:.3f}"


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def _off(measured_peak: int, predicted: int) -> str:
    return f"measured {overhead(measured_peak, predicted)}" if predicted else "nothing predicted"


def _verdict(measured_peak: int, budget: int) -> str:
    return "met" if measured_peak <= budget else f"exceeded by {size(measured_peak - budget)}"


def gradient_difference(trial: Trial) -> str:
    if trial.difference == 0:
        return "0 (bitwise equal)"
    relative = trial.difference / trial.scale if trial.scale else float("inf")
    return f"{trial.difference:.3g} ({relative:.2g} of the largest gradient)"
