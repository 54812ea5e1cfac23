"""`remate.plan`: from a live model to a schedule, by capture, costs, partition and strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from msgspec.structs import replace

from remate_runtime.flat_step import Graph
from remate_runtime.format import (
    SPLIT_FEATURE,
    Schedule,
    Settings,
)
from remate_runtime.support.gc_pause import gc_paused

from ..budget import DEFAULT_SHARE, BudgetError, parse_budget
from ..capture.differentiated import choice_text
from ..capture.recorded import RecordedCall, called
from ..dims.batch_of_one import about_batch_of_one
from ..dims.generic import sized
from ..dims.open_sizes import FIXED, OpenSizes, sampled, trace_sample_costs
from ..errors import InfeasibleError
from ..live_attributes.capturing import captured
from ..partition.hierarchy import Hierarchy
from ..partition.partitioning import partition
from ..profile.costing import COMPILED, costed, operator_costs
from ..profile.devices import Device, is_estimated
from ..splits.windows import HEAD
from ..strategy import CandidatePool, Request, StepInstance, effort_named, policy, solve
from .elsewhere import cost_for, gpu_elsewhere, on_device, warn_of_doubts
from .options import PlanKeywords, PlanOptions, options_of, takes
from .over_budget import plans_smallest, warn_of_smallest
from .progress import Progress, aloud, silent, telling
from .settings import assumed, pages, refuse_for_parts, refuse_paging, settings_of
from .sharding import check_sharding, with_sharding
from .tried_parts import proposing_what_works
from .untrained import checked_fill, require_training
from .writing import schedule_of

if TYPE_CHECKING:
    from .parts import PartSchedules


DEFAULTS = PlanOptions()


@overload
def plan(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int | None = None,
    cost: str | None = None,
    *,
    at: None = None,
    **options: Unpack[PlanKeywords],
) -> Schedule: ...


@overload
def plan(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int | None = None,
    cost: str | None = None,
    *,
    at: str | Sequence[str],
    **options: Unpack[PlanKeywords],
) -> Schedule | PartSchedules: ...


@takes(PlanKeywords)
def plan(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int | None = None,
    cost: str | None = None,
    *,
    at: str | Sequence[str] | None = None,
    **options: Unpack[PlanKeywords],
) -> Schedule | PartSchedules:
    """Plan one training step of a model under a memory budget.

    remate traces forward and backward of one call, measures or estimates each operation, and searches for the fastest
    schedule within the budget. Ctrl-C during the search returns the best schedule so far. A model in evaluation mode is
    planned with a warning.

    Args:
        model: The live model, in the mode that it trains in; or a call that `remate.record` recorded.
        args: Positional arguments of the call to plan. A recorded call has its own.
        kwargs: Keyword arguments of the call to plan.
        budget: Largest peak, in bytes (`"4GiB"`, `4 << 30`) or as a share of the baseline's peak (`"60%"`). The peak
            counts activations, outputs, gradients and workspaces, but not parameters, buffers, inputs and optimizer
            state. `"min"`: the smallest peak that a quick search finds, or that costs at most `slowdown`. Default: the
            knee of the curve of peak and time, which is printed. For parts, for `cost="compiled"` and with pages it is
            60%; parts that need more get their smallest peak.
        cost: Source of times and workspaces. `"measured"`: the model's device (default). `"cpu"`, `"a100"`, `"h100"`,
            `"h200"`: a roofline model; the default with `device`. `"compiled"`: measured, with a budget that holds
            under `apply(..., engine="compiled")`.
        at: Paths of modules to plan instead of the whole model, for example `"transformer.h.*"`. Forward runs once to
            record their calls. The budget covers all their calls together.
        profile: File of measured costs to reuse and to complete. Default: the user's cache.
        cache: Whether to use the user's cache of measured costs.
        measure_again: Whether to measure stored costs again, and replace them.
        time_limit: Limit of the search in seconds; a fast strategy still runs if nothing fits by then. The file records
            whether the limit ended the search.
        gap: Stop when the schedule is proven to be this close to the fastest one, as a share of the baseline's time.
        strategy: `"auto"`, or a name that `remate strategies` lists. Some have solvers to choose:
            `"hiremate[leaf=checkmate,milp=scip]"`.
        effort: How hard to search: `"quick"`, `"normal"` or `"thorough"`. It counts work, not seconds, so that the same
            arguments give the same schedule on every machine.
        differentiate: Names of the outputs that get a gradient. `["*"]`: all. Default: the scalar field `loss` if there
            is one, else the only scalar of a tuple if it follows from the other outputs (`return logits, loss`), else
            every differentiable output. The other outputs refuse a gradient. `"NAME:LAYOUT"` is an output with the
            memory layout of its gradient, which decides how kernels round: `contiguous`, `channels_last`, `preserve`
            (that of the output), or axes by descending stride such as `0,2,1`. Default: `contiguous` for a
            channels-last output of the whole model, otherwise `preserve`.
        gradients: What happens to the gradients of parameters when backward delivers them: `"retained"` to the end of
            the step, `"accumulated"` into an existing `.grad`, or `"consumed"` by an optimizer in backward.
        dims: Sizes that may differ between calls, by the conventions of `dynamic_shapes` in `torch.export`: argument,
            axis, name and optionally a range, `{"input_ids": {0: "b", 1: "t=16..1024/8"}}`. `"b*t": 4096` beside the
            arguments limits what grows with sizes, for batches with a number of tokens. `"auto"` opens the size of the
            batch.
        live: Numbers that change during training and are read at every call: paths of attributes of the model and names
            of inputs, for example `["alpha", "h.*.drop.p"]`.
        fill: Values that `apply(..., otherwise="pad")` may pad inputs with, for example `{"input_ids": 0, "labels":
            -100}`.
        name: Name of the schedule. Default: the name of the model's class.
        note: Note to store in the file.
        progress: Function that gets lines of progress. `"auto"` prints to stderr after three seconds. None prints
            nothing.
        slowdown: Plan the smallest peak that costs at most this much extra time, `"10%"` or `0.1`.
        disk_budget: Bytes that a step may page to a scratch file (`"64GiB"`): values leave the memory of the device and
            come back before they are read. The result is the fastest schedule, with or without pages. Default: no
            pages.
        host_budget: Bytes that a step may page to pinned memory of the host, for a model on CUDA.
        bandwidth: Bandwidth of paging, `"2GB/s"`, or `"measured"`; for a GPU that is not here, `"measured"` is 80% of
            its PCIe rate. Plans assume 85% of it.
        split: `"head"` permits that loss heads run in tiles of rows, forward and backward, if that is faster. It lowers
            the floor, and changes the order of some sums of gradients, which the schedule lists. True, or `"all"`, also
            permits it for other operations that need much memory: layers of products, convolutions between norms. The
            default budget is 60% then. Default: no splits.
        objective: With strategy `"poet"`: `"time"`, or `"energy"` of the device `power`.
        power: With strategy `"poet"`: a device of POET, `"a72"`, `"m4"` or `"m0"`. Its watts count, and the speed of
            its storage instead of `bandwidth`.
        limit: With strategy `"poet"`: most of the other figure (time or energy), as a multiple of the baseline's.
        device: A GPU that this machine need not have, `"cuda:h100"`. The step is the one that CUDA runs there, for a
            model on the CPU or the meta device. An ambient autocast of the CPU counts as CUDA's. Needs a C++ compiler.
        fsdp: Paths of the modules that `fully_shard` (FSDP2) will shard, for example `"layers.*"`. It will shard the
            model, too. The budget is that of one rank: it counts gathered parameters and buffers of communication.
        shards: With `fsdp`: number of ranks that each parameter is divided over.
        keep_gathered: With `fsdp`: the modules whose parameters stay gathered from forward to backward
            (`reshard_after_forward=False`). Default: the model itself, as PyTorch does. True: all; or paths, where `""`
            is the model.
        on_infeasible: What to do if no schedule meets the budget. `"error"` raises InfeasibleError. `"smallest"` warns,
            and plans the smallest peak that was found.

    Returns:
        The schedule. If `at` names parts with several different steps: a collection with `save(folder)`.

    Raises:
        CaptureError: The model cannot be traced, or has nothing to train.
        DimsError: A size cannot be left open.
        BudgetError: The budget is not valid.
        ProfileError: The file of costs cannot be used.
        UnknownNameError: A strategy, an effort, a cost model or a use of gradients is unknown.
        NotApplicableError: The strategy needs something that the step lacks.
        InfeasibleError: No schedule within the budget was found. The error has the smallest known peak.

    Examples:
        >>> import remate, torch
        >>> from torch import nn
        >>> model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        >>> schedule = remate.plan(model, (torch.randn(1024, 64),), budget="80%", cost="cpu")
        >>> schedule.peak_bytes <= 0.8 * schedule.baseline_peak_bytes
        True
    """
    given, call = options_of("plan", PlanKeywords, options, at=at), called(model, args, kwargs)
    with proposing_what_works(call, given, gpu_elsewhere(given.device)):
        return _planned(call, budget, cost, given)


def plan_beside_original(
    call: RecordedCall, budget: str | int | None, options: Mapping[str, Any]
) -> Schedule | PartSchedules:
    """Plan a call as `plan` does, where calls that no schedule fits run the model's own forward.

    Args:
        call: The recorded call.
        budget: As for `plan`.
        options: Other arguments of `plan`.
    """
    keywords = {name: value for name, value in options.items() if name not in ("at", "cost")}
    given = options_of("plan", PlanKeywords, keywords, at=options.get("at"))
    return _planned(called(call), budget, options.get("cost"), given, all_calls=False)


def _planned(
    call: RecordedCall, budget: str | int | None, cost: str | None, options: PlanOptions, all_calls: bool = True
) -> Schedule | PartSchedules:
    """See `plan`. all_calls: Whether a call that the schedule does not fit is an error."""
    from .goals import check_budget, goal_of, plan_for_goal

    check_budget(budget, options.slowdown)
    smallest = plans_smallest(options.on_infeasible)
    gpu = gpu_elsewhere(options.device)
    cost, at = cost_for(gpu, cost), options.at
    check_sharding(options, cost)
    fixed = at, options.disk_budget, options.host_budget, options.split  # these need a budget
    default = budget is None and options.slowdown is None and (cost == COMPILED or any(x is not None for x in fixed))
    if default:
        budget = DEFAULT_SHARE
    goal = goal_of(budget, options.slowdown)
    written = f"{budget}B" if isinstance(budget, int) and budget <= 100 else str(budget)  # 60 bytes is probably 60%
    settings = settings_of(options, "" if goal else written)
    require_training(call)
    warn_of_doubts(cost, gpu, call)
    if goal and (at is not None or cost == COMPILED):
        raise BudgetError("at= and cost='compiled' need a budget\n  hint: add budget='60%' or '4GiB'")
    if at is not None or goal or cost == COMPILED:
        refuse_paging(settings, "at=, cost='compiled', budget='min' and slowdown= do not support paging")
    if at is not None:
        from .parts import plan_at

        refuse_for_parts(options)
        with telling(options.progress) as say:
            return plan_at(
                call,
                at,
                settings,
                cost,
                options,
                gpu=gpu,
                or_smallest=default or smallest,
                warn=not default,
                progress=say,
            )
    in_bytes = not goal and parse_budget(settings.budget).share is None
    with telling(options.progress) as say:
        sizes = OpenSizes(options.dims, in_bytes)
        step = prepare(call, cost=operator_costs(cost), options=options, open_sizes=sizes, gpu=gpu, progress=say)
        fill = checked_fill(options.fill or {}, step.captured.model)
        names: dict[str, Any] = {"name": options.name or type(call.model).__name__, "note": options.note}
        if goal:
            schedule = plan_for_goal(step, settings, cost, goal, aloud(options.progress, say), **names, progress=say)
        else:
            schedule = plan_step(step, settings, cost, or_smallest=smallest, **names, progress=say)
        note = about_batch_of_one(schedule, options.dims, call.model, call.args, call.kwargs) if all_calls else ""
        for text in (note, *_about_splits(schedule, step)):
            if text:
                aloud(options.progress, say)(text)
    return replace(schedule, model=replace(schedule.model, fill=fill))


def _about_splits(schedule: Schedule, step: Hierarchy) -> list[str]:
    """Notes where splits are permitted: that nothing can be split, and sizes that begin later."""
    from .splitting import narrowed_sizes, why_not_split

    permitted = schedule.solve.settings is not None and schedule.solve.settings.split
    if permitted == HEAD and SPLIT_FEATURE not in schedule.requires:
        return [why_not_split(step)]
    return narrowed_sizes(schedule, step) if permitted else []


def prepare(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cost: str = "measured",
    *,
    options: PlanOptions = DEFAULTS,
    open_sizes: OpenSizes = FIXED,
    gpu: Device | None = None,
    progress: Progress | None = None,
    digested: bool = True,
) -> Hierarchy:
    """Capture a step with its costs and partition it into blocks. The result does not depend on the budget.

    Args:
        model: The live model, or a recorded call.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        cost: Source of times and workspaces, but not `"compiled"`.
        options: `profile`, `cache`, `measure_again`, `differentiate`, `gradients` and `live` are used.
        open_sizes: Sizes that may differ between calls.
        gpu: A GPU to capture the step for, which this machine need not have.
        progress: Function that gets lines of progress.
        digested: As for `capture`. Without it, no file can be written.
    """
    say = progress or silent
    with on_device(gpu, called(model, args, kwargs)) as call, call.in_effect():
        differentiate, live = options.differentiate, options.live_paths
        family = sampled(call.model, call.args, call.kwargs, differentiate, open_sizes, say, live)
        if family is None:
            say("tracing forward and backward")
            traced = captured(call.model, call.args, call.kwargs, differentiate, live, digested=digested, say=say)
        else:
            traced = family.trace_samples[0].captured
    if differentiate is None and (text := choice_text(traced.model)):
        say(text)
    say(f"measuring or estimating the costs of {len(traced.graph.operations):,} operations")

    def priced(graph: Graph) -> Graph:
        return costed(graph, cost, options.profile, progress, cached=options.cache, again=options.measure_again)

    section = with_sharding(traced.model, called(model).model, options)
    traced = replace(traced, digest=call.noted(traced.digest), model=section)
    graph = replace(priced(traced.graph), delivered=assumed(options.gradients), sharded=section.sharded)
    say("finding repeated blocks")
    with gc_paused():
        step = replace(partition(replace(traced, graph=graph)), price=priced)
    if family is None:
        return step
    step_of_sizes = sized(step, family, trace_sample_costs(family, graph, cost, priced))
    for line in step_of_sizes.sized.said[len(family.said) :] if step_of_sizes.sized else ():
        say(line)
    return step_of_sizes


def plan_step(
    step: Hierarchy,
    settings: Settings,
    cost: str,
    *,
    name: str,
    note: str = "",
    or_smallest: bool = False,
    progress: Progress | None = None,
) -> Schedule:
    """Solve a prepared step and return its schedule.

    Args:
        step: The prepared step.
        settings: Settings with the budget, which the file records.
        cost: The cost model of the step, or "compiled" for measured costs.
        name: Name of the schedule.
        note: Note for the file.
        or_smallest: Warn and plan the smallest peak if no schedule meets the budget. The file records the requested
            budget in its settings, so that the same request finds it again.
        progress: Function that gets lines of progress.

    Raises:
        RemateError: As for `plan`.
    """
    instance, pool = StepInstance(step.captured.graph, step.parts), CandidatePool()
    options: dict[str, Any] = {"name": name, "note": note, "progress": progress, "instance": instance, "pool": pool}
    try:
        return _within_budget(step, settings, cost, **options)
    except InfeasibleError as error:
        if not or_smallest:
            raise
        warn_of_smallest(error)
        schedule = _within_budget(step, replace(settings, budget=f"{error.smallest}B"), cost, **options)
    recorded = replace(schedule.solve.settings or settings, budget=settings.budget)
    return replace(schedule, solve=replace(schedule.solve, settings=recorded))


def _within_budget(
    step: Hierarchy,
    settings: Settings,
    cost: str,
    *,
    name: str,
    note: str,
    progress: Progress | None,
    instance: StepInstance,
    pool: CandidatePool,
) -> Schedule:
    """Solve a step for the budget in the settings. `pool` has the plans of earlier searches of `instance`."""
    if cost == COMPILED:
        from .plan_compiled import plan_compiled

        return plan_compiled(step, settings, name=name, note=note, progress=progress)
    if pages(settings):
        from .paging import plan_paged

        return plan_paged(step, settings, cost, name=name, note=note, progress=progress)
    if settings.split:
        from .splitting import plan_split

        return plan_split(step, settings, cost, name=name, note=note, progress=progress)
    limit = parse_budget(settings.budget).resolve(instance.baseline.peak)
    request = Request(limit, settings.gap, effort_named(settings.effort))
    chosen = policy(settings.strategy)
    try:
        solution = solve(instance, request, chosen, pool=pool, time_limit=settings.time_limit, progress=progress)
    except InfeasibleError as error:
        from .splitting import floor_if_split

        raise error.at(step.planned, is_estimated(cost), floor_if_split(step, cost, limit)) from None
    return schedule_of(step, solution, limit, cost, settings=settings, name=name, note=note)
