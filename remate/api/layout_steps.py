"""Memory and time of one layout of ranks, from the plans of the steps of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import Graph
from remate_runtime.format import Gradients, Model
from remate_runtime.link import groups_of
from remate_runtime.support.quantities import size

from ..capture.recorded import RecordedCall
from ..errors import InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..pipelines.order import pipeline_order
from ..profile.communication import between, gathering_ns
from ..profile.devices import Device, Link
from ..schedule_tools.device_memory import OptimizerState, grad_bytes, residents
from ..strategy import Request, StepInstance, effort_named, policy, solve
from .layouts import RankLayout
from .options import PlanOptions
from .pipeline import Loss, PipelineSearch, captured_stages, loss_use
from .plan import Progress, prepare
from .sharding import with_sharding


class Machine(msgspec.Struct, frozen=True):
    """The machines of a cluster.

    Attributes:
        device: Costs of a device.
        gpu: The GPU to capture steps for; None for this CPU.
        memory: Bytes of a device.
        count: Devices of a machine.
        network: Bytes/s of a device to other machines.
        optimizer: Optimizer whose state is on the device.
        cuda_context: Bytes of the CUDA context; None for an estimate.
        reserve: Bytes to keep free.
    """

    device: Device
    gpu: Device | None
    memory: int
    count: int
    network: float
    optimizer: OptimizerState
    cuda_context: int | None
    reserve: int

    def held(self, models: Sequence[Model], gradients: Gradients) -> int:
        """Return the bytes that a rank with these parts of the model holds beside its steps."""
        once = {"CUDA context", "reserve", *(["optimizer state"] if isinstance(self.optimizer, int) else [])}
        given = [residents(model, self.optimizer, self.cuda_context, gradients, self.reserve) for model in models]
        of_parts = sum(item.nbytes for items in given for item in items if item.what not in once)
        return of_parts + sum(item.nbytes for item in given[0] if item.what in once)

    def link(self, ranks: int, apart: int) -> Link:
        """Return the link along a mesh dimension. apart: difference between the numbers of neighbouring ranks."""
        return between(self.device, ranks, apart, self.count, self.network)


class LayoutStep(msgspec.Struct, frozen=True):
    """Training one batch. Times are in ns.

    Attributes:
        time: Predicted time of the batch.
        recomputation: How much of it the plans of the ranks add.
        communication: How much of it waits for other ranks, beside the collectives within layers.
        memory: By rank of `pp`, the most bytes of its device.
        bound: A proven lower limit of the time within the memory, for the costs.
    """

    time: int
    recomputation: int
    communication: int
    memory: tuple[int, ...]
    bound: int


class ImpossibleError(Exception):
    """A layout does not fit, or the model does not support it."""


def plain_step(
    call: RecordedCall, layout: RankLayout, place: Machine, options: PlanOptions, say: Progress | None
) -> LayoutStep:
    """Plan the step of a rank without a pipeline. Raises ImpossibleError."""
    gradients: Gradients = "accumulated" if layout.microbatches > 1 else "retained"
    chosen = replace(options, gradients=gradients)
    step = prepare(call, cost=place.device.name, options=chosen, gpu=place.gpu, progress=say, digested=False)
    graph, model = step.captured.graph, step.captured.model
    replicated = layout.dp > 1 and graph.sharded is None
    held = place.held([model], gradients) + (grad_bytes(model) if replicated else 0)  # buckets
    instance = StepInstance(graph, step.parts)
    base = instance.baseline
    peak, time, bound = base.peak, base.time, base.time
    left = _left(place, held)
    if base.peak > left:
        try:
            request = Request(left, options.gap, effort_named(options.effort))
            solution = solve(instance, request, policy(options.strategy), time_limit=options.time_limit, progress=say)
        except InfeasibleError as error:
            raise _too_large(held, error) from None
        peak, time, bound = solution.peak, solution.time, solution.lower_bound
    link, calls = place.link(layout.dp, layout.tp), layout.microbatches
    if replicated:
        backward = sum(op.ns for op in graph.operations[graph.backward_start :])
        waits = max(0, 2 * gathering_ns(grad_bytes(model), layout.dp, link) - backward)
    else:
        waits = calls * _sharding_waits(graph, layout.dp, link, base.time)
    return LayoutStep(calls * time + waits, calls * (time - base.time), waits, (held + peak,), calls * bound + waits)


def pipeline_step(
    stages: Sequence[RecordedCall],
    loss: Loss,
    layout: RankLayout,
    place: Machine,
    schedule: str,
    options: PlanOptions,
    say: Progress | None,
) -> LayoutStep:
    """Plan the stages of a pipeline. Raises ImpossibleError."""
    order = pipeline_order(schedule, len(stages), layout.microbatches, layout.pp)
    whole = replace(options, fsdp=None, shards=None)
    steps = captured_stages(stages, whole, place.device.name, place.gpu, say, digested=False)
    lost = loss_use(steps[-1], loss, whole, place.device.name, place.gpu)
    models = [with_sharding(step.captured.model, call.model, options) for step, call in zip(steps, stages, strict=True)]
    models = [models[0], *(replace(model, inputs={}) for model in models[1:])]  # the peak has the others' inputs
    ranks = [[models[at] for at in order.stages_of(rank)] for rank in range(layout.pp)]
    buckets = layout.dp > 1 and options.fsdp is None
    held = [place.held(of, "retained") + sum(grad_bytes(model) for model in of if buckets) for of in ranks]
    search = PipelineSearch(order, steps, lost, [model.sharded for model in models], whole, say)
    try:
        plan = search.solve(_left(place, max(held)))
    except InfeasibleError as error:
        raise _too_large(max(held), error) from None
    by_stage = [_stage_waits(step, model, layout, place) for step, model in zip(steps, models, strict=True)]
    waits = max(sum(by_stage[at] for at in order.stages_of(rank)) for rank in range(layout.pp))
    waits += 2 * (len(stages) - 1) * _sent(steps[0].captured.graph, layout, place)
    memory = tuple(bytes_held + rank.peak for bytes_held, rank in zip(held, plan.ranks, strict=True))
    return LayoutStep(plan.time + waits, plan.time - plan.baseline_time, waits, memory, plan.lower_bound + waits)


def _left(place: Machine, held: int) -> int:
    if held >= place.memory:
        raise ImpossibleError(f"parameters and the state of the optimizer take {size(held)}")
    return place.memory - held


def _too_large(held: int, error: InfeasibleError) -> ImpossibleError:
    return ImpossibleError(f"needs {size(held + error.smallest)} of each device")


def _sharding_waits(graph: Graph, ranks: int, link: Link, compute: int) -> int:
    """Return how long a call waits for FSDP2: for the first block and the model's own parameters, before forward and
    after backward, and for what computation does not hide. Parameters that do not stay are gathered twice."""
    if graph.sharded is None:
        return 0
    groups = groups_of(graph, graph.sharded).groups
    gathers = [gathering_ns(group.whole, ranks, link) for group in groups]
    reductions = [gathering_ns(group.gradients, ranks, link) for group in groups]
    all_of_it = sum(reductions) + sum((2 - group.kept) * ns for group, ns in zip(groups, gathers, strict=True))
    return max(0, all_of_it - compute) + sum(gathers[:2]) + sum(reductions[:2])


def _stage_waits(step: Hierarchy, model: Model, layout: RankLayout, place: Machine) -> int:
    """Return how long a stage waits before its first forward and after its last backward."""
    link, graph = place.link(layout.dp, layout.tp), step.captured.graph
    if model.sharded is None:
        return 2 * gathering_ns(grad_bytes(model), layout.dp, link)
    groups = groups_of(graph, model.sharded).groups
    return sum(gathering_ns(nbytes, layout.dp, link) for group in groups for nbytes in (group.whole, group.gradients))


def _sent(graph: Graph, layout: RankLayout, place: Machine) -> int:
    """Return the time to send the outputs of the first stage to the next one."""
    nbytes = sum(graph.nbytes(graph.root[output]) for output in graph.outputs)
    link = place.link(layout.pp, layout.dp * layout.tp)
    bandwidth = link.bandwidth if layout.ranks <= place.count else place.network
    return link.latency_ns + round(nbytes / bandwidth * 1e9)
