"""`remate.plan(model, args, at="transformer.h.*")`: schedules for parts of a model, within one budget.

Parts with the same step share a file. The planned peak is that of all their calls together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime.flat_step import expand
from remate_runtime.format import Digest, Schedule, Settings, fold_paths, unfold_paths
from remate_runtime.link import link, peak_together
from remate_runtime.staleness import compare_digest, digest_of_parts

from ..budget import BudgetError, parse_budget
from ..capture.capture_step import capture
from ..capture.differentiated import OF_A_PART
from ..capture.parts import PartCalls, part_calls
from ..capture.recorded import RecordedCall
from ..errors import CaptureError, InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..profile.devices import Device
from ..strategy import Solution, effort_named, policy, shared_effort
from .elsewhere import gpu_of_file, on_device
from .frontier import Sweep
from .options import PlanOptions
from .over_budget import warn_of_smallest
from .plan import DEFAULTS, Progress, prepare
from .progress import silent
from .shared_budget import SharedBudget, as_if_all
from .splitting import plan_split
from .writing import schedule_of

_WORTHWHILE = 0.02  # without a requested budget, parts that cannot save this share of their peak keep everything


class PartSchedules(msgspec.Struct, frozen=True):
    """Schedules for parts of one model, one per kind of part. Apply them with `apply(model, [*schedules])`."""

    schedules: tuple[Schedule, ...]

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)

    def __getitem__(self, index: int) -> Schedule:
        return self.schedules[index]

    def save(self, folder: str | Path) -> None:
        """Write each schedule as NAME.json into a folder. The folder is created if missing."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for schedule in self.schedules:
            schedule.save(str(Path(folder) / f"{schedule.name}.json"))

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of all parts together in bytes, beside parameters, buffers, inputs and optimizer state."""
        expanded = [expand(part) for part in self.schedules]
        return peak_together([link(part.graph, part.recomputes, part.pages) for part in expanded])


class PartKind(msgspec.Struct, frozen=True):
    """A kind of part, prepared for planning. paths: paths of its modules."""

    step: Hierarchy
    paths: tuple[str, ...]


def prepare_parts(
    call: RecordedCall,
    at: str | Sequence[str],
    cost: str,
    options: PlanOptions = DEFAULTS,
    gpu: Device | None = None,
    progress: Progress | None = None,
) -> list[PartKind]:
    """Find the calls of the parts and capture the step of each kind. The result does not depend on the budget.

    Args:
        call: The call of the whole model.
        at: Paths of the parts.
        cost: The cost model.
        options: As for `prepare`.
        gpu: As for `prepare`.
        progress: Function that gets lines of progress.

    Raises:
        CaptureError: A path names no module, or a part cannot be captured.
    """
    say = progress or silent
    options = replace(options, differentiate=options.differentiate or OF_A_PART)
    say("running forward to record the calls of its parts")
    kinds: list[PartKind] = []
    with on_device(gpu, call) as device_call:
        every = part_calls(device_call, at)
        for calls in every:
            with _instead([path for other in every if other is not calls for path in other.paths], calls.paths):
                pending = list(calls.paths)
                while pending:
                    digests, step = _first(device_call.model, calls, pending[0], cost, options, progress)
                    for path in pending[1:]:
                        if (
                            digest := _same(device_call.model, calls, path, step, digests[pending[0]], options)
                        ) is not None:
                            digests[path] = digest
                    pending = [path for path in pending if path not in digests]
                    kinds.append(_part(step, digests, calls.calls))
    return kinds


def prepare_part_again(
    schedule: Schedule, call: RecordedCall, cost: str, options: PlanOptions, progress: Progress | None
) -> Hierarchy:
    """Prepare the step of a schedule's parts again. Raises CaptureError if they have several different steps now."""
    paths = list(unfold_paths(schedule.model.at))
    parts = prepare_parts(call, paths, cost, options, gpu_of_file(schedule), progress)
    if len(parts) > 1:  # if modules are called in several ways, choose the planned way
        same = [p for p in parts if p.step.captured.model.inputs == schedule.model.inputs]
        same = [p for p in same if p.step.captured.model.at == schedule.model.at]
        if len(same) != 1:
            kinds = "; ".join(", ".join(part.step.captured.model.at) for part in parts)
            raise CaptureError(
                f"the parts at {', '.join(schedule.model.at)} have {len(parts)} different steps now: {kinds}",
                hint="plan them as several kinds: remate plan … --at … -o FOLDER/",
            )
        parts = same
    return parts[0].step


def _first(
    model: nn.Module,
    calls: PartCalls,
    path: str,
    cost: str,
    options: PlanOptions,
    progress: Progress | None,
) -> tuple[dict[str, Digest], Hierarchy]:
    if progress is not None:
        progress(f"part {path}")
    with _named(path):
        step = prepare(calls.call(model, path), cost=cost, options=options, progress=progress)
    assert step.captured.digest is not None
    return {path: step.captured.digest}, step


@contextmanager
def _instead(others: Sequence[str], failing: Sequence[str]) -> Generator[None]:
    """Let a CaptureError in a part propose the other parts, too.

    Args:
        others: Paths of the other parts.
        failing: Paths of the part and of those like it.
    """
    try:
        yield
    except CaptureError as error:
        inside = [part[len(f"{path}.") :] for path in failing for part in error.parts if part.startswith(f"{path}.")]
        parts = [*others, *(f"{path}.{part}" for path in failing for part in inside)]
        raise CaptureError(error.message, error.module, error.source, error.hint, parts, error.settles) from error


@contextmanager
def _named(path: str) -> Generator[None]:
    """Add the path of the part to the paths in a CaptureError."""
    try:
        yield
    except CaptureError as error:
        module, parts = f"{path}.{error.module}".rstrip("."), [f"{path}.{part}" for part in error.parts]
        raise CaptureError(error.message, module, error.source, error.hint, parts) from error


def _same(
    model: nn.Module,
    calls: PartCalls,
    path: str,
    step: Hierarchy,
    digest: Digest,
    options: PlanOptions,
) -> Digest | None:
    """The digest of another module if its step is the same, by its digest or by tracing it; otherwise None."""
    call = calls.call(model, path)
    version = torch.__version__.partition("+")[0]
    with call.in_effect(), _named(path):
        if not compare_digest(digest, version, call.model).faults:
            return digest
        captured = capture(call.model, call.args, call.kwargs, differentiate=options.differentiate)
    return captured.digest if captured.model.fingerprint == step.captured.model.fingerprint else None


def _part(step: Hierarchy, digests: Mapping[str, Digest], calls: int) -> PartKind:
    captured, paths = step.captured, tuple(digests)
    graph = replace(captured.graph, calls=len(paths) * calls, modules=len(paths))
    model = replace(captured.model, at=fold_paths(paths), calls=calls)
    captured = replace(captured, graph=graph, model=model, digest=digest_of_parts(digests))
    return PartKind(replace(step, captured=captured), paths)


def plan_at(
    call: RecordedCall,
    at: str | Sequence[str],
    settings: Settings,
    cost: str,
    options: PlanOptions,
    *,
    gpu: Device | None = None,
    or_smallest: bool = False,
    warn: bool = False,
    progress: Progress | None = None,
) -> Schedule | PartSchedules:
    """Plan the parts at `at`, for `remate.plan`.

    Args:
        call: The call of the whole model.
        at: Paths of the parts.
        settings: Settings to record, with the budget.
        cost: The cost model.
        options: Options of planning.
        gpu: As for `prepare`.
        or_smallest: Plan the smallest peak if the budget is below it.
        warn: Whether to warn then.
        progress: Function that gets lines of progress.

    Returns:
        The schedule if there is one kind of part; otherwise a collection.
    """
    parts = prepare_parts(call, at, cost, options, gpu, progress)
    names: dict[str, Any] = {"name": options.name, "note": options.note, "progress": progress}
    planned = plan_parts(parts, settings, cost, or_smallest=or_smallest, warn=warn, **names)
    return planned[0] if len(planned) == 1 else planned


def plan_parts(
    parts: Sequence[PartKind],
    settings: Settings,
    cost: str,
    *,
    name: str = "",
    note: str = "",
    or_smallest: bool = False,
    warn: bool = False,
    progress: Progress | None = None,
) -> PartSchedules:
    """Plan parts of a model within one budget for all of them together.

    Args:
        parts: The parts, as `prepare_parts` returns them.
        settings: The budget, the strategy, the effort and the time limit of each solve.
        cost: The source of times and workspaces.
        name: Name of the schedules. Default: that of the part's class.
        note: Remark to keep in the files.
        or_smallest: Plan the smallest peak if the budget is below it.
        warn: Whether to warn then.
        progress: Function that gets a line of text now and then.

    Raises:
        BudgetError: The budget cannot be read.
        InfeasibleError: No schedule within the budget was found.
    """
    options: dict[str, Any] = {"name": name, "note": note, "progress": progress}
    try:
        return _planned(parts, settings, cost, settings.budget, **options)
    except InfeasibleError as error:
        if not or_smallest:
            raise
        if warn:
            warn_of_smallest(error)
        keeps = not warn and error.smallest > (1 - _WORTHWHILE) * _baseline_peak(parts)
        if keeps:
            return _planned(parts, replace(settings, budget="100%"), cost, "100%", **options)
        return _planned(parts, replace(settings, budget=f"{error.smallest}B"), cost, settings.budget, **options)


def _baseline_peak(parts: Sequence[PartKind]) -> int:
    return peak_together([link(part.step.captured.graph) for part in parts])


def _planned(
    parts: Sequence[PartKind],
    settings: Settings,
    cost: str,
    requested_budget: str,
    *,
    name: str,
    note: str,
    progress: Progress | None,
) -> PartSchedules:
    """Plan the parts. The schedule of a single part records the requested budget."""
    if settings.split:
        return _split(parts, settings, cost, name=name, note=note, progress=progress)
    requested = parse_budget(settings.budget)
    effort = shared_effort(effort_named(settings.effort), len(parts))
    options: dict[str, Any] = {"policy": policy(settings.strategy), "effort": effort}
    options |= {"gap": settings.gap, "time_limit": settings.time_limit}
    graphs = [part.step.captured.graph for part in parts]
    budget = requested.resolve(_baseline_peak(parts))
    if len(parts) == 1:
        solutions = [_solved(Sweep(parts[0].step, progress=progress, **options), budget)]
        limits = [budget]
    else:
        sweeps = [Sweep(step, progress=progress, **options) for step in as_if_all([part.step for part in parts])]
        solutions = SharedBudget(graphs, sweeps, budget, settings.strategy).solutions()
        limits = [solution.peak for solution in solutions]
    schedules: list[Schedule] = []
    for at, (part, limit, part_name) in enumerate(zip(parts, limits, names_of(parts, name), strict=True)):
        text = requested_budget if len(parts) == 1 else str(limit)
        part_settings = replace(settings, budget=text)
        schedules.append(
            schedule_of(part.step, solutions[at], limit, cost, settings=part_settings, name=part_name, note=note)
        )
    return PartSchedules(tuple(schedules))


def _split(
    parts: Sequence[PartKind], settings: Settings, cost: str, *, name: str, note: str, progress: Progress | None
) -> PartSchedules:
    """Plan the parts of one kind with splits."""
    if len(parts) > 1:
        kinds = ", ".join(part.paths[0] for part in parts)
        raise BudgetError(
            f"splits in parts of {len(parts)} kinds cannot share a budget (one of each: {kinds})\n"
            "  hint: plan each kind with a budget of its own, or remove split"
        )
    (name,) = names_of(parts, name)
    return PartSchedules((plan_split(parts[0].step, settings, cost, name=name, note=note, progress=progress),))


def _solved(sweep: Sweep, limit: int) -> Solution:
    if sweep.solve(limit) is None:
        raise InfeasibleError(limit, min(sweep.smallest, sweep.baseline_peak), sweep.floor, "auto")
    return sweep.solutions()[limit]


def names_of(parts: Sequence[PartKind], name: str = "") -> list[str]:
    """Unique names for the schedules of these parts: the second `T5Block` is `T5Block-2`."""
    counts: dict[str, int] = {}
    names: list[str] = []
    for base in [name or part.step.captured.model.name for part in parts]:
        counts[base] = counts.get(base, 0) + 1
        names.append(base if counts[base] == 1 else f"{base}-{counts[base]}")
    return names
