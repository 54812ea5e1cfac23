"""Plans with pages: bandwidth, limits, and the fastest schedule with or without pages."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from remate_runtime.format import Lane, PageMemory, Schedule, Settings
from remate_runtime.link import parameter_bytes
from remate_runtime.support.quantities import size

from ..budget import BudgetError, parse_budget, parse_speed
from ..errors import InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..profile.bandwidth import measured_host_lane, measured_lane
from ..profile.devices import DEVICES, named_gpu
from ..profile.power import named_power
from ..strategy import Request, StepInstance, effort_named, policy
from ..strategy.paging import PAGED_STRATEGIES, PagingLimits, offloaded, paged_solution, poet
from ..strategy.paging.goal import POET, EnergyGoal
from .progress import Progress, silent
from .settings import TO_THE_HOST

COUNTED_ON = 0.85  # share of the bandwidth that plans use, because slower lanes than planned cost much time
_LATENCY: dict[PageMemory, int] = {"disk": 100_000, "host": 10_000}  # ns, if only a bandwidth is given


def plan_paged(
    step: Hierarchy, settings: Settings, cost: str, *, name: str, note: str = "", progress: Progress | None = None
) -> Schedule:
    """Like `plan_step`, for settings with a budget of pages. Raises BudgetError if the device cannot page there."""
    from .writing import schedule_of

    say = progress or silent
    graph = step.captured.graph
    limits = _limits(settings, graph.device)
    power = named_power(settings.power) if settings.power else None
    lanes = {memory: power.storage.lane if power else _lane(memory, settings, cost) for memory in limits}
    for memory, lane in lanes.items():
        say(f"pages to the {memory}: assuming {lane.out / 1e9:.2f} GB/s out and {lane.back / 1e9:.2f} GB/s back")
    graph = replace(graph, lanes={**graph.lanes, **lanes})
    step = replace(step, captured=replace(step.captured, graph=graph))
    instance = StepInstance(graph, step.parts)
    weights = settings.strategy == "weight-offloading"
    counted = parameter_bytes(graph) if weights else 0
    budget = parse_budget(settings.budget).resolve(instance.baseline.peak + counted)
    request = Request(budget, settings.gap, effort_named(settings.effort))
    chosen = policy("auto" if settings.strategy in PAGED_STRATEGIES else settings.strategy)
    paging = PagingLimits(limits, settings.strategy == "offload-only")
    try:
        if weights:
            base = size(instance.baseline.peak + counted)
            say(f"the peak includes parameters, {size(counted)}: the baseline is {base}")
            to, limit = max(limits.items(), key=lambda item: (graph.lanes[item[0]].back, item[0]))
            solution = offloaded(instance, request, to, limit, time_limit=settings.time_limit, progress=say)
        elif settings.strategy == POET:
            to, limit = max(limits.items(), key=lambda memory: (graph.lanes[memory[0]].back, memory[0]))
            goal = EnergyGoal.checked(settings.objective or "time", settings.power, settings.limit, to, limit)
            solution = poet(instance, request, goal, time_limit=settings.time_limit, progress=say)
        else:
            solution = paged_solution(instance, request, paging, chosen, time_limit=settings.time_limit, progress=say)
    except InfeasibleError as error:
        raise error.at(step.planned) from None
    return schedule_of(step, solution, budget, cost, settings=settings, name=name, note=note)


def _limits(settings: Settings, device: str) -> dict[PageMemory, int]:
    stated: dict[PageMemory, str] = {"disk": settings.disk_budget, "host": settings.host_budget}
    limits: dict[PageMemory, int] = {memory: parse_budget(text).size or 0 for memory, text in stated.items() if text}
    if "host" in limits and device == "cpu":
        raise BudgetError(
            "host_budget: the step runs in the memory of the host\n  hint: page to the disk: "
            "disk_budget (--disk-budget)"
        )
    if "disk" in limits and device != "cpu":
        raise BudgetError(f"disk_budget: the step runs on {device}, and {TO_THE_HOST}")
    if settings.strategy == "weight-offloading" and device != "cpu":
        raise BudgetError(
            f"the strategy 'weight-offloading' pages parameters and gradients of models on the CPU only, and the step "
            f"runs on {device}\n  hint: strategy='mixed' (--strategy mixed) pages results of forward"
        )
    return limits


def _lane(memory: PageMemory, settings: Settings, cost: str) -> Lane:
    if settings.bandwidth != "measured":
        speed = int(COUNTED_ON * parse_speed(settings.bandwidth))
        return Lane(out=speed, back=speed, latency=_LATENCY[memory])
    if memory == "disk":
        lane = measured_lane()
    elif torch.cuda.is_available() and not settings.device:
        lane = measured_host_lane(torch.device("cuda", torch.cuda.current_device()))
    else:
        lane = _stated(settings.device, cost)
    return Lane(out=int(COUNTED_ON * lane.out), back=int(COUNTED_ON * lane.back), latency=lane.latency)


def _stated(device: str, cost: str) -> Lane:
    """Return the lane to the host of a GPU that is not here."""
    named = named_gpu(device or None) or DEVICES.get(cost)
    if named is None or not named.host:
        raise BudgetError(
            "the bandwidth to pinned memory cannot be measured without the GPU\n  hint: state it: bandwidth='50GB/s' "
            "(--bandwidth 50GB/s)"
        )
    return Lane(out=int(named.host), back=int(named.host), latency=_LATENCY["host"])
