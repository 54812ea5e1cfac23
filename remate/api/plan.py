"""`remate.plan`: from a live model to a schedule. Capture, costs, partition, strategy, and the file that says it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from remate_runtime import operators
from remate_runtime.errors import RemateError
from remate_runtime.format import FORMAT, REVISION, VERSION, Block, Schedule, Solve, fingerprint
from remate_runtime.link import link, simulate
from remate_runtime.step import expand

from ..budget import Budget, parse_budget
from ..capture.capture_step import capture
from ..fold.folding import fold
from ..inspect.schema_file import SCHEMA_URL
from ..partition.hierarchy import Hierarchy
from ..partition.partitioning import partition
from ..profile.costing import costed
from ..strategy import Effort, Instance, Policy, Request, Solution, effort_named, policy, solve

Progress = Callable[[str], None]


def plan(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int = "60%",
    cost: str = "measured",
    *,
    profile: str | Path | None = None,
    time_limit: float | None = None,
    gap: float = 0.002,
    strategy: str = "auto",
    effort: str = "normal",
    differentiate: Sequence[str] | None = None,
    name: str = "",
    note: str = "",
    progress: Progress | None = None,
) -> Schedule:
    """Plan one training step of `model(*args, **kwargs)` under a memory budget.

    budget: bytes ("4GiB", 4 << 30) or a share of the peak of the schedule without reruns ("60%"). Peak and budget count
    the bytes that the step holds at its worst moment beyond parameters, buffers, inputs and optimizer state; outputs,
    gradients and workspace count. cost: "measured" on the model's device, or the name of a roofline device ("h200",
    "a100", "h100", "cpu"). profile: file of measured costs to reuse and complete. gap: stop when the step is proven to
    take at most this share of the keep-all time more than any schedule must. strategy: "auto", or one by itself (`remate
    strategies` lists them). effort: how hard to search, "quick", "normal" or "thorough"; it counts work, not seconds, so
    the same arguments give the same schedule on any machine. time_limit: seconds, a safety net: a schedule that it cut
    short says so. differentiate: names of the outputs that will receive a gradient (default: the scalar field `loss` of
    a dict or record, else every output that has one in eager); the others refuse one. name: of the schedule, by default
    that of the model's class. note: a remark to keep in the file. progress: called with a line of text now and then.
    Ctrl-C while it solves ends the search: the best schedule by then is returned.

    Raises CaptureError, BudgetError, ProfileError, UnknownNameError (a strategy or an effort), NotApplicableError (a
    strategy that needs what the model lacks), InfeasibleError (with the smallest peak that is reached).
    """
    wanted, asked, how = parse_budget(budget), policy(strategy), effort_named(effort)
    step = prepare(model, args, kwargs, cost, profile=profile, differentiate=differentiate, progress=progress)
    named = name or type(model).__name__
    options: dict[str, Any] = {"gap": gap, "time_limit": time_limit, "name": named, "note": note}
    return plan_step(step, wanted, cost, policy=asked, effort=how, **options, progress=progress)


def prepare(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    cost: str = "measured",
    *,
    profile: str | Path | None = None,
    differentiate: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Hierarchy:
    """All that does not depend on the budget: the captured step with its costs, partitioned into blocks."""
    say = progress or (lambda text: None)
    say("capturing the joint graph")
    captured = capture(model, args, dict(kwargs or {}), differentiate=differentiate)
    say(f"costs of {len(captured.graph.operations)} operations")
    graph = costed(captured.graph, cost, Path(profile) if profile is not None else None, progress)
    say("partitioning into blocks")
    return partition(replace(captured, graph=graph))


def plan_step(
    step: Hierarchy,
    budget: Budget,
    cost: str,
    *,
    policy: Policy,
    effort: Effort,
    time_limit: float | None = None,
    gap: float = 0.002,
    name: str,
    note: str = "",
    progress: Progress | None = None,
) -> Schedule:
    """Solve what `prepare` made, and write it down. cost: what `prepare` was given. The rest, and what is raised, as of
    `plan`."""
    instance = Instance(step.captured.graph, step.parts)
    limit = budget.resolve(instance.baseline.peak)
    solution = solve(instance, Request(limit, gap, effort), policy, time_limit=time_limit, progress=progress)
    return schedule_of(step, solution, limit, cost, name=name, note=note)


def schedule_of(step: Hierarchy, solution: Solution, budget: int, cost: str, *, name: str, note: str = "") -> Schedule:
    """Write a solution down, and check that what was written means what was solved."""
    folded = fold(step.captured, solution.reruns, step, solution.menu)
    schedule = Schedule(
        schema=SCHEMA_URL,
        format=FORMAT,
        version=VERSION,
        revision=REVISION,
        namespaces=_namespaces(folded.blocks),
        name=name,
        note=note,
        model=folded.model,
        solve=Solve(
            strategy=solution.strategy,
            solver=solution.solver,
            stopped_by=solution.stopped_by,
            cost=cost,
            budget=budget,
            peak=solution.peak,
            time=solution.time,
            baseline_peak=solution.baseline_peak,
            baseline_time=solution.baseline_time,
            lower_bound=solution.lower_bound,
            gap=solution.gap,
        ),
        blocks=folded.blocks,
        program=folded.program,
        statements=folded.statements,
        digest=step.captured.digest,
    )
    schedule = replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))
    written = expand(schedule)
    timeline = simulate(link(written.graph, written.reruns))
    if (timeline.peak, timeline.time) != (solution.peak, solution.time):
        raise RemateError(
            f"the schedule written has peak {timeline.peak} and time {timeline.time}, the solution {solution.peak} and "
            f"{solution.time}\n  hint: this is a defect of remate; please report it with the model"
        )
    return schedule


def _namespaces(blocks: Mapping[str, Block]) -> tuple[str, ...]:
    """Operator namespaces that whoever applies the schedule must permit."""
    operations = (op for block in blocks.values() for op in (*block.forward, *block.backward))
    return tuple(sorted({operators.namespace(op.op) for op in operations} - operators.NAMESPACES))
