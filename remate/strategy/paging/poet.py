"""POET: recomputation and paging for least energy, or least time, with a limit on the other.

S. Patil, P. Jain, P. Dutta, I. Stoica, J. Gonzalez, "POET: Training neural networks on tiny devices with integrated
rematerialization and paging", ICML 2022. `poet_model` is the paper's integer program. It grows with the square of the
step. A step that is too large for the effort, or that it does not solve to the end, gets the best of the program's
schedule, the greedy schedule that it starts from, and the schedule of `auto` without pages.

The greedy schedule relieves the fullest operation of the value that costs least for its bytes. A value is paged, or its
operation runs again before the next read, if everything that the operation reads is in memory there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from remate_runtime.flat_step import FlatPage, FlatRecompute, Graph
from remate_runtime.format import PageMemory
from remate_runtime.link import Timeline, link, simulate

from ...errors import InfeasibleError
from ...profile.power import Storage, step_energy
from ..base import NO_SOLVER, Request
from ..deadline import Deadline
from ..effort import QUICK
from ..instance import StepInstance
from ..milp.highs import SOLVER, SolveOptions
from ..milp.horizon import horizon
from ..solve import Solution, solve
from .gaps import Gaps, flat_page, slots
from .goal import POET, EnergyGoal
from .greedy import Paged
from .paged_cut import best_choice
from .poet_model import PoetModel, StorageStretch
from .proof import proven

_LARGEST = 150  # variables of a model that is tried, times the nodes of the effort
_NODES = 40  # nodes of the search, times those of the effort
_GAP = 1e-4  # percent of the baseline's energy or time
_CLOSE = 2e-6  # share of the baseline's energy or time that counts as optimal
_ROUNDS = 4  # retries with a smaller target: the linker can hold more than the model counts


class Judged(NamedTuple):
    """A schedule. energy: Joules. bound: Proven lower bound of the objective's extra, as a share of the baseline's."""

    paged: Paged
    energy: float
    solver: str
    bound: float = 0.0
    optimal: bool = False


def poet(
    instance: StepInstance,
    request: Request,
    goal: EnergyGoal,
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Solution:
    """Return the schedule of least energy, or of least time, within a budget.

    Args:
        instance: The step, with the lanes of its graph.
        request: The request; `budget` is of the device.
        goal: Objective, device, and limits.
        time_limit: Seconds for the integer program.
        progress: Called with a line of text at each stage.

    Returns:
        The solution. Its bound is of the time of all schedules that recompute and page, whatever their energy;
        `stopped_by` is of the objective.

    Raises:
        InfeasibleError: No schedule fits the budget and the limit.
    """
    best = least(instance, request, goal, time_limit=time_limit, progress=progress, waits=True)
    base, paged = instance.baseline, best.paged
    bound = base.time
    if best.optimal and goal.objective == "time" and goal.limit is None:
        bound = paged.time
    elif base.peak > request.budget and instance.has_backward:
        limits: dict[PageMemory, int] = {goal.to: goal.room}
        choice = best_choice(instance, request.budget, limits, request.effort, time_limit=time_limit, progress=progress)
        bound = base.time if choice is None else choice.bound
    solution = Solution(
        paged.recomputes,
        paged.peak,
        paged.time,
        base.peak,
        base.time,
        bound,
        0.0,
        "heuristic",
        POET,
        best.solver,
        pages=paged.pages,
    )
    solution = proven(solution, bound)
    return replace(solution, stopped_by="optimal") if best.optimal else solution


def least(
    instance: StepInstance,
    request: Request,
    goal: EnergyGoal,
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
    waits: bool,
) -> Judged:
    """Return the best schedule of the greedy start and of the integer program.

    Args:
        instance: As of `poet`, like the next four.
        request: The request.
        goal: Objective, device, and limits.
        time_limit: Seconds for the integer program.
        progress: Called with a line of text at each stage.
        waits: Whether time includes waits for copies. The paper assumes that copies are hidden.
    """
    judge = _Judge(instance, request.budget, goal, waits)
    judge.consider((), (), NO_SOLVER)
    target = request.budget
    start: tuple[Sequence[FlatRecompute], Sequence[StorageStretch]] | None = None
    for _ in range(_ROUNDS):
        start = greedy_choice(instance, target, goal)
        over = None if start is None else judge.consider(*start, NO_SOLVER)
        if over is None or over <= 0:
            break
        target -= over
    progress(f"poet, greedy start: {judge.text()}")
    size = 2 * instance.view(horizon).variables
    if size <= _LARGEST * request.effort.nodes:
        with Deadline(time_limit, progress) as deadline:
            _solve(instance, request, goal, judge, start, deadline)
        progress(f"poet, integer program: {judge.text()}, proven at least {judge.bound:.4%}")
    else:
        most = _LARGEST * request.effort.nodes
        progress(
            f"poet: the integer program has about {size:,} variables, and {request.effort.name} effort solves up to "
            f"{most:,}"
        )
    if judge.extra() - judge.bound > _CLOSE:
        _search(instance, request, judge, time_limit)
        progress(f"poet, beside recomputation only, without a proof: {judge.text()}")
    if judge.best is None:
        smallest = min(judge.smallest, instance.baseline.peak)
        raise InfeasibleError(
            request.budget, smallest, min(instance.least_need, smallest), POET, None, smallest, struck=False, holder=""
        )
    return judge.best._replace(bound=judge.bound, optimal=judge.extra() - judge.bound <= _CLOSE)


def _search(instance: StepInstance, request: Request, judge: _Judge, time_limit: float | None) -> None:
    """Consider the schedule of `auto`. Without pages, least time is least energy."""
    try:
        plain = solve(instance, replace(request, effort=QUICK), time_limit=time_limit)
    except InfeasibleError as error:
        judge.smallest = min(judge.smallest, error.smallest)
        return
    if plain.order is None:
        judge.consider(plain.recomputes, (), plain.solver)


def _solve(
    instance: StepInstance,
    request: Request,
    goal: EnergyGoal,
    judge: _Judge,
    start: tuple[Sequence[FlatRecompute], Sequence[StorageStretch]] | None,
    deadline: Deadline,
) -> None:
    model = PoetModel(instance, goal_storage(instance.graph, goal), goal_watts(goal), goal.room, judge.waits)
    most = None if goal.limit is None else 100.0 * (goal.limit - 1.0)
    target = float(request.budget)
    for _ in range(_ROUNDS):
        options = SolveOptions(
            stage=POET,
            absolute_gap=max(_GAP, 50.0 * request.gap * (goal.objective == "time")),
            nodes=_NODES * request.effort.nodes,
            start=None if start is None else model.start(*start),
        )
        result = model.solve(deadline, target, goal.objective, most, options)
        if target == request.budget:
            judge.bound = max(0.0, result.bound / 100.0)
        if result.x is None:
            return
        over = judge.consider(model.recomputes(result.x), model.stretches(result.x), SOLVER)
        if over <= 0:
            return
        target, start = target - over, None


def goal_storage(graph: Graph, goal: EnergyGoal) -> Storage:
    """Return the storage of a goal: that of the device, or that of the graph's lane."""
    if goal.power is not None:
        return goal.power.storage
    lane = graph.lanes[goal.to]
    return Storage(lane.out, lane.back, (lane.latency, lane.latency))


def goal_watts(goal: EnergyGoal) -> float:
    """Return the power of a copy as a multiple of the power of arithmetic."""
    return 0.0 if goal.power is None else goal.power.copying / goal.power.compute


class _Judge:
    """Simulates schedules and keeps the best one."""

    def __init__(self, instance: StepInstance, budget: int, goal: EnergyGoal, waits: bool) -> None:
        self._instance, self._budget, self._goal, self.waits = instance, budget, goal, waits
        self._energy = self._joules(simulate(link(instance.graph)))
        self.best: Judged | None = None
        self.bound = 0.0  # of the program: share of the baseline's figure
        self.smallest = instance.baseline.peak

    def consider(
        self,
        recomputes: Sequence[FlatRecompute],
        stretches: Sequence[StorageStretch],
        solver: str,
    ) -> int:
        """Judge a schedule. Return the bytes by which it exceeds the budget."""
        graph = self._instance.graph
        pages = placed(graph, recomputes, stretches, self._goal.to, self._budget)
        timeline = simulate(link(graph, recomputes, pages))
        time = timeline.time if self.waits else timeline.time - timeline.stall
        paged, energy = Paged(tuple(recomputes), pages, timeline.peak, time), self._joules(timeline)
        self.smallest = min(self.smallest, timeline.peak)
        if timeline.peak <= self._budget and self._within(time, energy, timeline.paged.get(self._goal.to, 0)):
            judged = Judged(paged, energy, solver)
            if self.best is None or self._worth(judged) < self._worth(self.best):
                self.best = judged
        return timeline.peak - self._budget

    def extra(self) -> float:
        """Return the extra of the best schedule's objective, as a share of the baseline's."""
        if self.best is None:
            return float("inf")
        if self._goal.objective == "energy":
            return self.best.energy / (self._energy or 1) - 1.0
        return self.best.paged.time / (self._instance.baseline.time or 1) - 1.0

    def text(self) -> str:
        """Describe the best schedule."""
        if self.best is None:
            return "no schedule fits"
        more = (self.best.paged.time / (self._instance.baseline.time or 1) - 1) * 100
        if self._goal.power is None:
            return f"{more:.4f}% more time"
        joules = (self.best.energy / (self._energy or 1) - 1) * 100
        return f"{more:.4f}% more time, {joules:.4f}% more energy ({self.best.energy:.6g} J)"

    def _within(self, time: int, energy: float, stored: int) -> bool:
        goal = self._goal
        if stored > goal.room:
            return False
        if goal.limit is None:
            return True
        if goal.objective == "energy":
            return time <= goal.limit * self._instance.baseline.time
        return energy <= goal.limit * self._energy

    def _worth(self, judged: Judged) -> tuple[float, float]:
        energy, time = judged.energy, float(judged.paged.time)
        return (energy, time) if self._goal.objective == "energy" else (time, energy)

    def _joules(self, timeline: Timeline) -> float:
        power = self._goal.power
        return 0.0 if power is None else step_energy(timeline, power)


def placed(
    graph: Graph, recomputes: Sequence[FlatRecompute], stretches: Sequence[StorageStretch], to: PageMemory, budget: int
) -> tuple[FlatPage, ...]:
    """Return pages that leave as late and return as early as the budget allows, without those that it does not need.

    Args:
        graph: The step.
        recomputes: Its recomputations.
        stretches: Times in storage.
        to: The memory that is paged to.
        budget: Most bytes on the device.
    """
    linked = link(graph, recomputes)
    held, boundary = slots(linked, simulate(linked)).held.copy(), graph.backward_start
    slot = [at + (at >= boundary) for at in range(len(graph.operations) + 1)]
    away = [(stretch, slot[stretch.gone], slot[stretch.back]) for stretch in stretches]
    for stretch, gone, back in away:
        held[gone:back] -= graph.nbytes(stretch.storage)
    pages: list[FlatPage] = []
    for stretch, gone, back in away:
        nbytes = graph.nbytes(stretch.storage)
        held[gone:back] += nbytes
        over = gone + np.flatnonzero(held[gone:back] > budget)
        if len(over):
            gone, last = int(over[0]), int(over[-1]) + 1
            held[gone:last] -= nbytes
            pages.append(flat_page(graph, stretch.storage, to, gone, last, -1))
    return tuple(pages)


class _Option(NamedTuple):
    """A way to free a gap. cost: ns of arithmetic that take as much energy or time. again: Whether it recomputes."""

    gap: int
    again: bool
    cost: float


def greedy_choice(
    instance: StepInstance, target: int, goal: EnergyGoal
) -> tuple[list[FlatRecompute], list[StorageStretch]] | None:
    """Free the fullest slot at the least cost for its bytes, until all slots fit.

    Args:
        instance: The step, with the lanes of its graph.
        target: Most bytes on the device.
        goal: What costs count.

    Returns:
        Recomputations and times in storage, or None if they do not suffice.
    """
    graph = instance.graph
    linked = link(graph)
    step = slots(linked, simulate(linked))
    held, gaps, boundary = step.held.copy(), step.gaps, graph.backward_start
    storage, watts, left = goal_storage(graph, goal), goal_watts(goal), goal.room
    options = [*_options(instance, gaps, storage, watts if goal.objective == "energy" else 1.0)]
    score = {option: option.cost / int(gaps.nbytes[option.gap]) for option in options}
    options.sort(key=lambda option: (score[option], option.gap))
    locked: dict[int, list[int]] = {}  # by storage: slots in which a recomputation reads it
    chosen: dict[int, bool] = {}
    while held.max() > target:
        at = int(held.argmax())
        option = next((o for o in options if _frees(o, at, gaps, chosen, locked, instance, left)), None)
        if option is None:
            return None
        first, read, nbytes = int(gaps.first[option.gap]), int(gaps.read[option.gap]), int(gaps.nbytes[option.gap])
        chosen[option.gap] = option.again
        held[first:read] -= nbytes
        left -= 0 if option.again else nbytes
        if option.again:
            producer = instance.problem.producer[int(gaps.values[option.gap])]
            for s in instance.problem.reads[producer]:
                locked.setdefault(s, []).append(read)

    def operation(slot: int) -> int:
        return slot - (slot > boundary)

    recomputes, stretches = list[FlatRecompute](), list[StorageStretch]()
    for gap, again in sorted(chosen.items()):
        s, first, read = int(gaps.values[gap]), int(gaps.first[gap]), int(gaps.read[gap])
        if again:
            recomputes.append(FlatRecompute(instance.problem.producer[s], operation(read)))
        else:
            stretches.append(StorageStretch(s, operation(first + (first == boundary)), operation(read)))
    return sorted(recomputes, key=lambda r: (r.before, r.op)), stretches


def _options(instance: StepInstance, gaps: Gaps, storage: Storage, weight: float) -> Iterator[_Option]:
    problem = instance.problem
    once = problem.once | set(range(problem.backward_start, len(problem.real)))
    for gap, value in enumerate(list[int](gaps.values.tolist())):
        nbytes = int(gaps.nbytes[gap])
        yield _Option(gap, False, weight * (storage.out_ns(nbytes) + storage.back_ns(nbytes)))
        producer = problem.producer[value]
        if producer not in once and len(problem.writes[producer]) == 1:
            yield _Option(gap, True, float(problem.time[producer]))


def _frees(
    option: _Option,
    at: int,
    gaps: Gaps,
    chosen: dict[int, bool],
    locked: dict[int, list[int]],
    instance: StepInstance,
    left: int,
) -> bool:
    """Return whether an option frees a slot and leaves all recomputations their arguments."""
    first, read, value = int(gaps.first[option.gap]), int(gaps.read[option.gap]), int(gaps.values[option.gap])
    if option.gap in chosen or not first <= at < read or any(first <= slot <= read for slot in locked.get(value, ())):
        return False
    if not option.again:
        return int(gaps.nbytes[option.gap]) <= left
    problem = instance.problem
    boundary = problem.backward_start
    for s in problem.reads[problem.producer[value]]:
        last = max((i + (i >= boundary) for i in problem.readers[s]), default=-1)
        pinned = s in problem.pinned
        away = any(int(gaps.values[g]) == s and int(gaps.first[g]) <= read <= int(gaps.read[g]) for g in chosen)
        if away or (last < read and not pinned):
            return False
    return True
