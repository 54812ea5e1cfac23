"""`remate.plan_pipeline`: a schedule for each stage of a pipeline, within the memory of each rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.format import Sharded
from remate_runtime.link import link
from remate_runtime.operator_calls import TORCH_DTYPES

from ..budget import DEFAULT_SHARE, BudgetError, parse_budget
from ..capture.differentiated import OF_A_STAGE
from ..capture.recorded import RecordedCall, called
from ..errors import CaptureError
from ..partition.hierarchy import Hierarchy
from ..pipelines.choice import choose, least_peak
from ..pipelines.forward_again import with_forward_again
from ..pipelines.order import PipelineOrder, pipeline_order
from ..pipelines.plan import PipelinePlan, RankDoesNotFitError, RankSummary
from ..pipelines.rank_memory import rank_peak
from ..pipelines.stage_use import StageUse, stage_use, with_shards
from ..pipelines.step_time import PipelineGraph, StageTimes
from ..profile.devices import Device
from ..strategy import Solution, effort_named, policy
from .elsewhere import cost_for, gpu_elsewhere, warn_of_doubts
from .frontier import Sweep
from .options import PlanOptions, SearchKeywords, options_of, takes
from .plan import Progress, prepare, schedule_of
from .progress import telling
from .settings import settings_of
from .sharding import check_sharding, with_sharding
from .untrained import require_training

_LADDER = (1.0, 0.75, 0.5, 0.25, 0.0)  # shares of the way from the smallest peak of a stage to that of its baseline
_REFINEMENTS = 3  # rounds in which each stage is planned between its plan and the next faster one
_CLOSE = 0.01  # budgets that differ by less, as a share of the baseline's peak, are not planned separately

Recomputes = tuple[FlatRecompute, ...]
Loss = tuple[Callable[..., Any], Any]  # as of torch's schedule: loss function, and a microbatch of targets


@takes(SearchKeywords)
def plan_pipeline(
    stages: Sequence[Any],
    schedule: str = "1F1B",
    microbatches: int = 8,
    budget: str | int | None = None,
    cost: str | None = None,
    *,
    ranks: int | None = None,
    loss: Loss | None = None,
    device: str | None = None,
    fsdp: str | Sequence[str] | None = None,
    shards: int | None = None,
    **options: Unpack[SearchKeywords],
) -> PipelinePlan:
    """Plan the stages of a pipeline of `torch.distributed.pipelining`, so that its step is shortest.

    Between its forward and its backward, a stage holds several microbatches: p - i for stage i of p under 1F1B, all of
    them under GPipe. Their numbers come from torch's own schedule classes. The budget bounds the peak of each rank over
    the whole step. The slowest stage counts: other stages get plans that do not delay it.

    Args:
        stages: For each stage in order, `(model, args)` or `(model, args, kwargs)` with one microbatch; or a call that
            `remate.record` recorded. Models may be on the meta device. Floating-point arguments of all stages but the
            first get gradients.
        schedule: Name of torch's schedule: `"GPipe"`, `"1F1B"`, `"Interleaved1F1B"`, `"LoopedBFS"`,
            `"InterleavedZeroBubble"`, `"ZBVZeroBubble"` or `"DualPipeV"`. Case does not matter.
        microbatches: Number of microbatches of a step.
        budget: Largest peak of each rank, in bytes (`"4GiB"`), or as a share of the largest rank's peak without
            recomputation (`"60%"`, the default). The peak counts activations of all microbatches in flight, the buffers
            of torch for inputs and gradients, outputs and `.grad`. It does not count parameters, buffers of the model,
            the optimizer's state and the inputs of the first stage.
        cost: As for `remate.plan`.
        ranks: Number of ranks. Default: one for each stage, or one for two stages if the schedule needs that.
        loss: The loss function of torch's schedule, and a microbatch of targets. Its memory counts for the last rank.
        device: As for `remate.plan`.
        fsdp: Modules of the stages that `fully_shard` (FSDP2) will be called on, as for `remate.plan`. The stages are
            sharded, too. The budget then counts gathered parameters, which stay for all microbatches, and the buffers
            of gathering and reducing.
        shards: Number of ranks that FSDP2 divides each stage's parameters over.
        profile: As for `remate.plan`.
        cache: As for `remate.plan`.
        measure_again: As for `remate.plan`.
        time_limit: Seconds for each solve, as a safety net.
        gap: As for `remate.plan`.
        strategy: As for `remate.plan`.
        effort: As for `remate.plan`.
        differentiate: As for `remate.plan`, for the last stage.
        gradients: Must be `"retained"`: the planner itself counts how microbatches accumulate gradients.
        dims: Must be None: microbatches of a pipeline have one size.
        live: As for `remate.plan`.
        name: Name of the schedules, before the number of the stage. Default: `stage`.
        note: As for `remate.plan`.
        progress: As for `remate.plan`.

    Returns:
        The schedules by stage, with peaks by rank, and the time of a step with its lower bound. `save(folder)` writes
        `stage0.json`, `stage1.json` and so on; `remate_runtime.apply` takes them.

    Raises:
        UnknownNameError: torch has no such schedule for these numbers.
        InfeasibleError: No schedules within the budget were found for a rank.
        RemateError: Any error of `remate.plan`.

    Examples:
        >>> import remate, torch
        >>> from torch import nn
        >>> layers = lambda: [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())]
        >>> stages = [(nn.Sequential(*layers()), (torch.randn(1024, 64),)) for _ in range(2)]
        >>> plan = remate.plan_pipeline(stages, "1f1b", microbatches=4, budget="80%", cost="cpu")
        >>> [rank.peak <= plan.budget for rank in plan.ranks]
        [True, True]
    """
    chosen = options_of("plan_pipeline", SearchKeywords, options, device=device)
    if chosen.gradients != "retained" or chosen.dims is not None:
        raise BudgetError(
            "the microbatches of a pipeline have one size, and accumulate their gradients"
            "\n  hint: leave out dims= and gradients="
        )
    sharding = PlanOptions(fsdp=fsdp, shards=shards)
    check_sharding(sharding, cost)
    text = str(budget or DEFAULT_SHARE)
    limit = parse_budget(budget or DEFAULT_SHARE)
    order = pipeline_order(schedule, len(stages), microbatches, ranks)
    gpu = gpu_elsewhere(device)
    cost = cost_for(gpu, cost)
    settings = settings_of(chosen, text)
    with telling(chosen.progress) as say:
        calls = [given if isinstance(given, RecordedCall) else called(given[0], *given[1:]) for given in stages]
        steps = captured_stages(calls, chosen, cost, gpu, say)
        lost = None if loss is None else loss_use(steps[-1], loss, chosen, cost, gpu)
        sharded = [
            with_sharding(step.captured.model, call.model, sharding).sharded
            for step, call in zip(steps, calls, strict=True)
        ]
        planner = PipelineSearch(order, steps, lost, sharded, chosen, say)
        plan = planner.solve(limit.resolve(max(planner.baseline_peaks)))
        label = chosen.name or "stage"
        schedules = tuple(
            schedule_of(
                step,
                solution,
                solution.peak,
                cost,
                settings=replace(settings, budget=str(solution.peak)),
                name=f"{label}{stage}",
                note=chosen.note or plan.note(stage),
            )
            for stage, (step, solution) in enumerate(zip(steps, planner.solutions, strict=True))
        )
    return replace(plan, schedules=schedules)


def captured_stages(
    calls: Sequence[RecordedCall],
    options: PlanOptions,
    cost: str,
    gpu: Device | None,
    say: Progress | None,
    digested: bool = True,
) -> list[Hierarchy]:
    """Capture the step of each stage with its costs. digested: as for `prepare`.

    Stages after the first one that are the same model with the same arguments are captured once.
    """
    steps: list[Hierarchy] = []
    known: dict[tuple[int, ...], Hierarchy] = {}
    for stage, call in enumerate(calls):
        last = stage == len(calls) - 1
        same = stage > 0, last, id(call.model), *map(id, call.args)
        if same not in known:
            if stage:
                call = RecordedCall.of(call.model, _received(call.args), call.kwargs, call.state)
            require_training(call)
            warn_of_doubts(cost, gpu, call)
            if say:
                say(f"capturing stage {stage}")
            wanted = options if last else replace(options, differentiate=OF_A_STAGE)
            known[same] = prepare(call, cost=cost, options=wanted, gpu=gpu, progress=say, digested=digested)
        steps.append(known[same])
    return steps


def _received(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments as a stage receives them: floating-point tensors are leaves that require gradients."""
    return tuple(
        arg.detach().requires_grad_() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg
        for arg in args
    )


class _LossModule(nn.Module):
    """The loss function of torch's schedule as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, output: Any, target: Any) -> Any:
        return self.function(output, target)


def loss_use(stage: Hierarchy, loss: Loss, options: PlanOptions, cost: str, gpu: Device | None) -> StageUse:
    """Return what the loss takes after a last stage."""
    function, target = loss
    graph = stage.captured.graph
    outputs = list(graph.outputs)
    if len(outputs) != 1:
        raise CaptureError(
            f"the last stage has {len(outputs)} outputs, and the loss of a pipeline takes one",
            hint="return one tensor from the last stage, or leave out loss=",
        )
    place = target.device if isinstance(target, torch.Tensor) else torch.device("cpu")
    type_ = graph.values[outputs[0]].type
    output = torch.zeros(type_.shape, dtype=TORCH_DTYPES[type_.dtype], device=place).requires_grad_()
    call = called(_LossModule(function).train(), (output, target))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the source of")  # of `_LossModule`, which no file holds
        step = prepare(call, cost=cost, options=options, gpu=gpu)
    use = stage_use(link(step.captured.graph))
    with torch.no_grad():  # torch's kernels may return a number in a larger storage: mse_loss on the CPU does
        return replace(use, loss=function(output, target).untyped_storage().nbytes())


class PipelineSearch:
    """Plans of all stages, and the choice among them.

    Attributes:
        baseline_peaks: By rank, the peak without recomputation.
        solutions: By stage, the chosen solution.
    """

    def __init__(
        self,
        order: PipelineOrder,
        steps: Sequence[Hierarchy],
        loss: StageUse | None,
        sharded: Sequence[Sharded | None],
        options: PlanOptions,
        say: Progress | None,
    ) -> None:
        self._order, self._loss, self._sharded, self._say = order, loss, sharded, say
        search: dict[str, Any] = {"policy": policy(options.strategy), "effort": effort_named(options.effort)}
        sweeps = {
            id(step): Sweep(step, gap=options.gap, time_limit=options.time_limit, progress=say, **search)
            for step in steps
        }
        self._sweeps = [sweeps[id(step)] for step in steps]  # equal stages share one
        self._gap, self._strategy = options.gap, options.strategy
        self._uses: dict[tuple[int, Recomputes], StageUse] = {}  # by stage and plan
        self._again: dict[tuple[int, Recomputes], Solution] = {}  # the plan with another forward, by stage and plan
        self._baseline = [self._use(stage, ()) for stage in range(order.stages)]
        self._graph = PipelineGraph(order)
        baseline = dict(enumerate(self._baseline))
        self.baseline_peaks = [rank_peak(order, rank, baseline).peak for rank in range(len(order.ranks))]
        self.solutions: list[Solution] = []

    def solve(self, budget: int) -> PipelinePlan:
        """Return the figures of the best plans within a budget in bytes. Raises InfeasibleError."""
        for stage, sweep in enumerate(self._sweeps):
            least = min((c.peak for c in sweep.least()), default=sweep.baseline_peak)
            for share in _LADDER:
                self._solve(stage, least + round(share * (sweep.baseline_peak - least)))
        bounds = [self._least_time(stage, budget) for stage in range(self._order.stages)]
        baseline = {stage: StageTimes.of(use) for stage, use in enumerate(self._baseline)}
        bound = self._graph.lower_bound(baseline, dict(enumerate(bounds)))
        time = self._choose(budget, bound)
        uses = {stage: self._use(stage, solution.recomputes) for stage, solution in enumerate(self.solutions)}
        summaries = tuple(
            RankSummary(rank, self._order.stages_of(rank), peak.peak, peak.buffers, self.baseline_peaks[rank])
            for rank in range(len(self._order.ranks))
            for peak in [rank_peak(self._order, rank, uses)]
        )
        return PipelinePlan(
            schedule=self._order.schedule,
            microbatches=self._order.microbatches,
            budget=budget,
            ranks=summaries,
            in_flight=tuple(self._order.in_flight(stage) for stage in range(self._order.stages)),
            time=time,
            baseline_time=self._graph.time(baseline),
            lower_bound=min(bound, time),
        )

    def _choose(self, budget: int, bound: int) -> int:
        """Choose plans, refine them, and return the time of the step."""
        for round_ in range(_REFINEMENTS + 1):
            known = [self._known(stage) for stage in range(self._order.stages)]
            plans = [[self._use(stage, solution.recomputes) for solution in of] for stage, of in enumerate(known)]
            choice = choose(self._order, plans, budget)
            if isinstance(choice, int):
                ranks = range(len(self._order.ranks))
                by_rank = [least_peak(self._order, rank, plans) for rank in ranks]
                stages = [self._order.stages_of(rank) for rank in ranks]
                raise RankDoesNotFitError(choice, stages, budget, by_rank, self._floor(choice))
            self.solutions = [known[stage][choice.plans[stage]] for stage in range(self._order.stages)]
            if round_ == _REFINEMENTS or choice.time <= bound * (1 + self._gap) or not self._refine():
                return choice.time
        raise AssertionError

    def _refine(self) -> bool:
        """Plan each stage between its plan and the next faster one. Return whether any stage was planned."""
        planned = False
        for stage, (sweep, solution) in enumerate(zip(self._sweeps, self.solutions, strict=True)):
            faster = [other.peak for other in sweep.solutions().values() if other.time < solution.time]
            if sweep.interrupted or not faster or min(faster) - solution.peak < 2 * _CLOSE * sweep.baseline_peak:
                continue
            self._solve(stage, (solution.peak + min(faster)) // 2)
            planned = True
        return planned

    def _solve(self, stage: int, budget: int) -> None:
        sweep = self._sweeps[stage]
        if budget not in sweep.by_budget and not sweep.interrupted:
            sweep.solve(budget, f"stage {stage}")

    def _known(self, stage: int) -> list[Solution]:
        """Return the plans of a stage, each also with another forward at the start of backward, which keeps less."""
        solutions = list(self._sweeps[stage].solutions().values())
        return solutions + [self._with_forward_again(stage, solution) for solution in solutions]

    def _with_forward_again(self, stage: int, solution: Solution) -> Solution:
        instance, key = self._sweeps[stage].instance, (stage, solution.recomputes)
        if key not in self._again:
            recomputes = with_forward_again(instance, solution.recomputes)
            plan = instance.judged(recomputes, solution.strategy, solution.solver)
            gap = (plan.time - solution.lower_bound) / max(1, solution.baseline_time)
            self._again[key] = replace(
                solution,
                recomputes=plan.recomputes,
                peak=plan.peak,
                time=plan.time,
                gap=gap,
                stopped_by="heuristic",
                menu=(),
                parts=(),
            )
        return self._again[key]

    def _use(self, stage: int, recomputes: Recomputes) -> StageUse:
        key = (stage, recomputes)
        if key not in self._uses:
            graph, last = self._sweeps[stage].step.captured.graph, stage == self._order.stages - 1
            linked = link(replace(graph, tangents_held=not last), recomputes)
            use = stage_use(linked, self._loss if last else None)
            self._uses[key] = with_shards(use, graph, self._sharded[stage])
        return self._uses[key]

    def _least_time(self, stage: int, budget: int) -> int:
        """Return a proven lower limit of forward and backward of a stage within the budget of its rank.

        At the first backward, all other microbatches in flight keep at least their outputs.
        """
        sweep, loss = self._sweeps[stage], self._loss if stage == self._order.stages - 1 else None
        beyond = 0 if loss is None else loss.forward + loss.backward
        most = budget - self._beside(stage)
        if most >= sweep.baseline_peak:
            return sweep.baseline_time + beyond
        self._solve(stage, most)
        solution = sweep.solutions().get(most)
        return (sweep.baseline_time if solution is None else solution.lower_bound) + beyond

    def _beside(self, stage: int) -> int:
        """Return the least bytes of a rank beside one step of a stage, at its first backward, for all plans."""
        order, use = self._order, self._baseline[stage]
        rank, kept = order.rank_of(stage), 0
        for action in order.ranks[rank]:
            if action.stage == stage and action.is_backward:
                break
            kept += action.stage == stage and action.kind == "F"
        buffers = rank_peak(order, rank, dict(enumerate(self._baseline))).buffers
        return buffers + use.whole + max(0, kept - 1) * use.outputs - use.tangents * (stage < order.stages - 1)

    def _floor(self, rank: int) -> int:
        """Return a proven lower limit of the peak of a rank."""
        return max(self._beside(stage) + self._sweeps[stage].floor for stage in self._order.stages_of(rank))
