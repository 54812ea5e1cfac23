"""The search for recomputations of one step under one budget.

Strategies propose and bounds prove, in the order of a policy (`portfolio`). This module judges proposals by the
simulator, keeps the best schedules, and stops the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import FlatPage, FlatRecompute
from remate_runtime.format import SolvedPart, StoppedBy
from remate_runtime.support.quantities import size

from ..errors import InfeasibleError, NotApplicableError
from .base import MENU, NO_SOLVER, PARTS, Candidate, Context, Need, Proposal, Request, Strategy
from .deadline import Deadline
from .effort import part_of
from .instance import StepInstance
from .needs import LACKS, lacking
from .pool import CandidatePool, better
from .portfolio import AUTO, Policy, Step, resolved
from .portfolio import policy as named

NEAR = 20  # if the budget is below the floor, a peak within this fraction of the floor ends the search
JUDGED = 48.0  # visits that simulating an operation counts as
WORK, WORK_UNTIL_NEAR = 2.0, 8.0  # visits of one strategy or bound over the effort's: usually, and until NEAR_BOUND
PROVING = 0.1  # share of the visits of a whole search that one bound may spend
NEAR_BOUND = 0.05  # gap, as a share of the baseline's time, up to which a schedule is near the bound


class Solution(msgspec.Struct, frozen=True):
    """The result of a search.

    Attributes:
        recomputes: The best schedule.
        peak: Simulated bytes.
        time: ns.
        baseline_peak: Simulated bytes without recomputation.
        baseline_time: ns without recomputation.
        lower_bound: Proven ns, of schedules of the kind that was searched: with pages or without.
        gap: Proven gap, (time - lower_bound) / baseline_time.
        stopped_by: Why the search ended.
        strategy: As in a candidate.
        solver: As in a candidate.
        menu: Further plans of repeated blocks, each over one instance.
        order: As in a candidate.
        pages: Pages of the schedule.
        parts: The tree of a hierarchical strategy.
    """

    recomputes: tuple[FlatRecompute, ...]
    peak: int
    time: int
    baseline_peak: int
    baseline_time: int
    lower_bound: int
    gap: float
    stopped_by: StoppedBy
    strategy: str
    solver: str
    menu: tuple[tuple[FlatRecompute, ...], ...] = ()
    order: tuple[int, ...] | None = None
    pages: tuple[FlatPage, ...] = ()
    parts: tuple[SolvedPart, ...] = ()


def solve(
    instance: StepInstance,
    request: Request,
    policy: Policy = AUTO,
    *,
    pool: CandidatePool | None = None,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Solution:
    """Return the fastest recomputations found whose simulated peak is within the budget.

    Args:
        instance: The step.
        request: Budget, gap and effort.
        policy: Which strategies and bounds run.
        pool: Schedules of earlier calls for the same instance. This call adds to it.
        time_limit: Seconds after which the best schedule so far is returned. A result that the limit affected says so,
            because another run may differ.
        progress: Called with one line of text at a time.

    Raises:
        InfeasibleError: Nothing fits. The error has the smallest peak that the policy's strategies reach, which is a
            budget that the same call meets, as it does every larger one. It also has the proven floor.
        NotApplicableError: The only strategy of the policy needs something that the step lacks.
        KeyboardInterrupt: Ctrl-C was pressed before a schedule fitted. Otherwise Ctrl-C ends the search early.
    """
    pool = CandidatePool() if pool is None else pool
    with Deadline(time_limit, progress) as deadline:
        try:
            return _Search(instance, request, policy, pool, deadline).solution()
        finally:
            pool.interrupted |= deadline.interrupted


class _Search:
    """One call of `solve`."""

    def __init__(
        self, instance: StepInstance, request: Request, policy: Policy, pool: CandidatePool, deadline: Deadline
    ) -> None:
        request = replace(request, solvers=policy.solvers)
        self.instance, self.request, self.policy, self.pool, self.deadline = instance, request, policy, pool, deadline
        self.base = instance.baseline
        pool.keep(self.base)
        known = self._known()
        self.floor = instance.least_need if policy.reorders else instance.floor
        self.context = Context(deadline, self.base.time, int(request.gap * self.base.time), known, self.floor)
        self.first: float | None = None  # visits when the first schedule fitted
        self._allow()

    def _known(self) -> Candidate | None:
        """Return the fastest known schedule within the budget, of the requested strategies."""
        return self.pool.best(self.request.budget, self.policy.names, self.policy.reorders)

    def solution(self) -> Solution:
        if self.context.best is not self.base:
            self._check_needs()
            if self.request.budget >= self.floor:
                self._each()
                self._steps(self.policy.steps)
            if self.context.best is None:
                self._take_smallest()
            self._steps(self.policy.finish)
        best, base, bound = self.context.best, self.base, self.context.bound
        assert best is not None
        gap = max(0.0, (best.time - bound) / max(1, base.time))
        return Solution(
            best.recomputes,
            best.peak,
            best.time,
            base.peak,
            base.time,
            bound,
            gap,
            self._stopped_by(gap),
            best.strategy,
            best.solver,
            self._menu(),
            best.order,
            parts=self._parts(best),
        )

    def _each(self) -> None:
        """Run strategies one by one. None sees the results of the others."""
        for name in self.policy.each:
            if self.deadline.ended():
                return
            limit = self.deadline.remaining()
            limit = None if limit == float("inf") else limit
            try:
                chosen = named(name)
                if not chosen.reorders:
                    requested = self.instance, self.request, chosen
                    answer = solve(*requested, pool=self.pool, time_limit=limit, progress=self.deadline.progress)
                    self.context.bound = max(self.context.bound, answer.lower_bound)
            except (InfeasibleError, NotApplicableError):
                continue
            if self.pool.interrupted:
                self.deadline.interrupt()
        self.context.best = self._known()

    def _stopped_by(self, gap: float) -> StoppedBy:
        if gap <= 1e-9:
            return "optimal"
        if self.deadline.interrupted:
            return "interrupted"
        if self.deadline.struck:
            return "time"
        return "gap" if gap <= self.request.gap else "heuristic"

    def _check_needs(self) -> None:
        """Raise NotApplicableError if no strategy of the policy applies to this step."""
        strategies = [s for s in map(resolved, self.policy.steps) if isinstance(s, Strategy)]
        lacks: list[tuple[str, Need | None]] = [(s.name, lacking(self.instance, s.needs)) for s in strategies]
        if all(lack is not None for _, lack in lacks):
            name, lack = lacks[0]
            assert lack is not None
            needed = f"the strategy {name!r} needs {LACKS[lack]}"
            raise NotApplicableError(f"{needed}\n  hint: use another strategy, or auto")

    def _done(self) -> bool:
        best, nothing_fits = self.context.best, self.request.budget < self.context.floor
        return self.deadline.ended() or nothing_fits or (best is not None and best.time <= self.context.enough)

    def _steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self._done():
                return
            tried = resolved(step)
            if step.when is not None and not step.when(self.instance, self.request, self.context):
                continue
            if lacking(self.instance, tried.needs) is not None:
                continue
            request = _shared(self.request, step)
            if isinstance(tried, Strategy):
                with self.deadline.limited(self._work()):
                    self._run(tried, request)
            else:
                with self.deadline.limited(min(self._work(), PROVING * self._allowed(gap=1.0))):
                    self._prove(tried.prove(self.instance.provable, request, self.context))

    def _work(self) -> float:
        """Return the visits of one strategy or bound.

        While nothing fits, it is half of what the search has left, so that each later strategy gets some.
        """
        best, enough = self.context.best, self.context.bound + NEAR_BOUND * self.base.time
        if best is None:
            return min(WORK_UNTIL_NEAR * self.request.effort.visits, self.deadline.left() / 2)
        return (WORK if best.time <= enough else WORK_UNTIL_NEAR) * self.request.effort.visits

    def _run(self, strategy: Strategy, request: Request) -> None:
        before = self.context.bound
        for candidate in self._tried(strategy, request, self.context):
            self._offer(candidate)
            if self._done():
                break
        self._say_bound(before)

    def _tried(self, strategy: Strategy, request: Request, context: Context) -> Iterator[Candidate]:
        """Yield candidates of a strategy.

        If the policy has several strategies, one that does not apply is skipped. The error of a single one is raised.
        """
        try:
            yield from candidates(strategy, self.instance, request, context)
        except NotApplicableError:
            if self.policy.names is not None:
                raise

    def _prove(self, proven: int) -> None:
        before, self.context.bound = self.context.bound, max(proven, self.context.bound)
        self._say_bound(before)

    def _say_bound(self, before: int) -> None:
        if self.context.bound > before:
            self._allow()
            more = self._percent(self.context.bound)
            self.deadline.say(f"proven: at least {more:.2f}% more time than keeping everything{self._gap()}")

    def _allow(self) -> None:
        """Limit the search: from its beginning until a schedule fits, and from then on by the gap of the best one."""
        best = self.context.best
        if best is None:
            self.deadline.allowed = self._allowed(gap=1.0)
            return
        self.first = self.deadline.spent if self.first is None else self.first
        self.deadline.allowed = self.first + self._allowed((best.time - self.context.bound) / max(1, self.base.time))

    def _allowed(self, gap: float) -> float:
        """Return the visits of a search with this gap. A strategy that was named has only its own limit."""
        operations = sum(not operation.view for operation in self.instance.graph.operations)
        return float("inf") if self.policy.names is not None else self.request.effort.allowed(operations, gap)

    def _offer(self, candidate: Candidate) -> None:
        """Keep a candidate, and take it if it fits and is the best so far."""
        self.pool.keep(candidate)
        self.deadline.spent += JUDGED * (len(self.instance.graph.operations) + len(candidate.recomputes))
        if candidate.peak > self.request.budget:
            return
        self.context.fitted.add(candidate.strategy)
        if better(self.context.best, candidate) is candidate:
            self.context.best = candidate
            self._allow()
            self.deadline.say(
                f"found: {self._percent(candidate.time):.2f}% more time, "
                f"peak {size(candidate.peak)} ({candidate.strategy}){self._gap()}"
            )

    def _gap(self) -> str:
        """Return the gap of the best schedule as text."""
        best = self.context.best
        return "" if best is None else f", gap {self._percent(best.time) - self._percent(self.context.bound):.2f}%"

    def _percent(self, time: int) -> float:
        return 100.0 * (time / max(1, self.base.time) - 1.0)

    def _take_smallest(self) -> None:
        """Take the best of the smallest schedules of the strategies. Raises InfeasibleError if none fits."""
        self.deadline.allowed = self.deadline.spent + self._allowed(gap=1.0)  # the same work for each budget
        if self.deadline.struck and self.request.budget >= self.floor and self._took_fast():
            return
        offers = self._smallest()
        for candidate in offers:
            self._offer(candidate)
        if self.context.best is None:
            if self.deadline.interrupted:  # whether something fits is unknown
                raise KeyboardInterrupt
            least = min(candidate.peak for candidate in offers)
            delivered = self.instance.floor_of_delivered
            details = self.policy.name, delivered, self.base.peak
            holder = "" if self.policy.reorders else self.instance.floor_holder
            raise InfeasibleError(
                self.request.budget, least, self.floor, *details, struck=self.deadline.struck, holder=holder
            )

    def _took_fast(self) -> bool:
        """Take the first schedule of a fast strategy that fits. It counts work, not seconds."""
        with Deadline(progress=self.deadline.progress) as unlimited:
            context = Context(unlimited, self.base.time, floor=self.floor)
            for step in self.policy.fast:
                strategy = resolved(step)
                if not isinstance(strategy, Strategy) or (
                    step.when and not step.when(self.instance, self.request, context)
                ):
                    continue
                with unlimited.limited(self._work()):
                    for candidate in self._tried(strategy, self.request, context):
                        self._offer(candidate)
                        if self.context.best is not None:
                            return True
        return False

    def _smallest(self) -> list[Candidate]:
        """Return the strategies' schedules for the proven floor, until one reaches it.

        If the budget is below the floor, so that nothing fits, the search ends when one is close. Otherwise the result
        does not depend on the budget, so a budget of its least peak is met, and so is every larger one.
        """
        instance, cache = self.instance, self.instance.kept
        hopeless = self.request.budget < self.floor
        key = ("smallest", self.policy.name, self.policy.solvers, self.request.effort, hopeless)
        if key in cache:
            return cache[key]
        request = replace(self.request, budget=self.floor)
        context, near = Context(self.deadline, self.base.time, floor=self.floor), self.floor // NEAR if hopeless else 0
        offers = [self.base]
        for step in self.policy.smallest:
            strategy = resolved(step)
            if step.when is not None and not step.when(instance, request, context):
                continue
            if isinstance(strategy, Strategy) and lacking(instance, strategy.needs) is None:
                with self.deadline.limited(self._work()):
                    for candidate in self._tried(strategy, _shared(request, step), context):
                        offers.append(candidate)
                        self.pool.keep(candidate)
                        if candidate.peak <= context.floor + near or self.deadline.ended():
                            break
            if min(offer.peak for offer in offers) <= context.floor + near or self.deadline.ended():
                break
        if not (self.deadline.struck or self.deadline.interrupted):  # otherwise it depends on the clock
            cache[key] = offers
        return offers

    def _menu(self) -> tuple[tuple[FlatRecompute, ...], ...]:
        """Return plans of repeated blocks that a strategy has stored with the instance."""
        return self.instance.kept.get((MENU, self.request.effort), ())

    def _parts(self, best: Candidate) -> tuple[SolvedPart, ...]:
        """Return the tree of parts of a schedule, if its strategy has stored one with the instance."""
        key = (PARTS, best.strategy.split("+")[0], self.request.effort, self.request.solvers)
        known = self.instance.kept.get(key)
        return () if known is None else known(best.recomputes)


def _shared(request: Request, step: Step) -> Request:
    return request if step.share == 1.0 else replace(request, effort=part_of(request.effort, step.share))


def candidates(strategy: Strategy, instance: StepInstance, request: Request, context: Context) -> Iterator[Candidate]:
    """Yield a strategy's proposals, judged. The strategy receives each candidate when the next one is requested."""
    if "milp" in strategy.options:
        strategy = replace(strategy, solver=request.solvers.milp_text(strategy.solver))
    proposals = strategy.propose(instance, request, context)
    try:
        proposal = next(proposals)
        while True:
            candidate = _judged(strategy, instance, proposal)
            yield candidate
            proposal = proposals.send(candidate)
    except StopIteration:
        return
    finally:
        proposals.close()


def _judged(strategy: Strategy, instance: StepInstance, proposal: Proposal) -> Candidate:
    start, order = proposal.start, proposal.order
    if order is None and start is not None:
        order = start.order
    if order is not None:
        candidate = _judged(
            strategy, instance.ordered(order), Proposal(proposal.recomputes, start and replace(start, order=None))
        )
        return replace(candidate, order=order)
    if start is None:
        return instance.judged(proposal.recomputes, strategy.name, strategy.solver)
    names = start.strategy.split("+")
    name = start.strategy if strategy.name in names else "+".join([*names, strategy.name])
    return instance.judged(proposal.recomputes, name, start.solver if strategy.solver == NO_SOLVER else strategy.solver)
