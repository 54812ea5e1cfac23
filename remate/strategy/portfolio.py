"""Solve a graph under a budget: several formulations, the proven bound to stop by, local improvement, one judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from remate_runtime.format import StoppedBy
from remate_runtime.step import FlatRerun, Graph

from ..errors import InfeasibleError, UnknownNameError
from ..partition.canonical import form
from ..partition.hierarchy import Hierarchy
from .bound.cuts import lower_bound, stronger_bound
from .chain import CLASSICAL, rotor
from .local.polish import polish
from .local.recreate import from_nothing, recreate
from .local.squeeze import squeeze
from .milp.budget_search import Attempt, Candidate, better, judge
from .milp.flat import flat_windows
from .milp.highs import VERSION, Control
from .milp.staged import refined, staged_windows
from .milp.warm_start import warm_start
from .shared import Shared

STRATEGIES = ("auto", "hierarchical", "flat", "staged", "greedy", *CLASSICAL, "rockmate", "none")
# Operations in a segment of the flat model; of a staged one, with the stages above its own where an operation may
# rerun.
FLAT = (24, 12, 40)
STAGED = ((8, 3), (5, 6))
LARGEST = 900  # variables of a staged model that still solves in seconds
SMALL = 320  # forward operations up to which greedy search takes no longer than a solve
ROUNDS = 120  # of ruin and recreate, on a step of USUAL forward operations or fewer
USUAL = 150
FEWEST = 2
NEAR = 2  # schedules slightly over the budget that are squeezed into it
GRACE = 10.0  # seconds for finding the smallest peak, when the budget turned out to be infeasible
REPEATED = 3  # instances of one block from which on choosing among plans of blocks pays
MENU = 4  # plans of a repeated block that a file offers beside those in use
TIGHT = 0.05  # gap that a single solve aims at, in % of the step time: finer than what is asked of the whole


class Solution(msgspec.Struct, frozen=True):
    """What a strategy found. peak, baseline_peak: simulated bytes. time, baseline_time, lower_bound: ns. gap: proven,
    (time - lower_bound) / baseline_time. menu: further plans of repeated blocks, each over one instance."""

    reruns: tuple[FlatRerun, ...]
    peak: int
    time: int
    baseline_peak: int
    baseline_time: int
    lower_bound: int
    gap: float
    stopped_by: StoppedBy
    strategy: str
    solver: str = f"highs {VERSION}"
    menu: tuple[tuple[FlatRerun, ...], ...] = ()


def solve(
    graph: Graph,
    budget: int,
    *,
    hierarchy: Hierarchy | None = None,
    time_limit: float | None = 60.0,
    gap: float = 0.002,
    strategy: str = "auto",
    progress: Callable[[str], None] | None = None,
    shared: Shared | None = None,
) -> Solution:
    """The fastest reruns found whose simulated peak is at most `budget` bytes.

    hierarchy: blocks of the graph; without them strategies look at the whole alone. gap: stop when proven within this
    share of the step's time. time_limit: seconds; what was found by then is returned. shared: what earlier solves of the
    same graph and hierarchy have built and found. Ctrl-C ends the search at once, too. Raises InfeasibleError with the
    smallest peak found and the floor that is proven.
    """
    check_strategy(strategy)
    shared = shared or Shared(graph, hierarchy)
    with Control(time_limit, progress) as control:
        return _Search(shared, budget, gap, strategy, control).solution()


def check_strategy(name: str) -> None:
    """Raise UnknownNameError unless there is a strategy of this name."""
    if name not in STRATEGIES:
        raise UnknownNameError(f"there is no strategy {name!r}\n  hint: one of {', '.join(STRATEGIES)}")


class _Search:
    """One call of `solve`: the best candidate so far and what is known about it."""

    def __init__(self, shared: Shared, budget: int, gap: float, strategy: str, control: Control) -> None:
        problem = self.problem = shared.problem
        self.shared, self.budget, self.gap, self.strategy, self.control = shared, budget, gap, strategy, control
        self.baseline = shared.baseline
        self.bound = problem.baseline_time
        self.best: Candidate | None = self.baseline if self.baseline.peak <= budget else None
        self.smallest = min(c.peak for c in shared.known)
        self.floor = shared.floor
        self.formulated = False  # a formulation of the whole step fits the budget

    def solution(self) -> Solution:
        if self.best is None:
            self._search()
        if self.best is None:
            failed = self._infeasible()
            self.shared.interrupted |= self.control.interrupted
            if self.best is None:  # the search for the smallest peak may have found what fits
                raise failed
        self.shared.interrupted |= self.control.interrupted
        found, base = self.best, self.baseline
        gap = max(0.0, (found.time - self.bound) / max(1, base.time))
        return Solution(
            found.reruns,
            found.peak,
            found.time,
            base.peak,
            base.time,
            self.bound,
            gap,
            self._stopped(gap),
            found.strategy,
            menu=self.shared.menu,
        )

    def _stopped(self, gap: float) -> StoppedBy:
        if gap <= 1e-9:
            return "optimal"
        if gap <= self.gap:
            return "gap"
        if self.control.interrupted:
            return "interrupted"
        return "time" if self.control.hit_limit else "heuristic"

    def _search(self) -> None:
        if self.strategy == "none" or self.budget < self.floor:
            return
        self.bound = lower_bound(self.shared.cuts, self.budget, self.control)
        self.control.say(f"proven: at least {self._percent(self.bound):.2f}% more time than keeping everything")
        self._offer(self.shared.best(self.budget))
        if self._done():
            return
        small = len(self.problem.forward) <= SMALL
        if self.strategy in (*CLASSICAL, "rockmate"):
            self._classical()
            return
        self._blocks()
        if self._done():
            return
        if self.strategy == "greedy" or (self.strategy == "auto" and small):
            self._greedy()
            self._recreate(0.25)
        self._attempt(self._flat())
        if small:
            self._strengthen()
            self._recreate(1.0)
        self._attempt(self._staged())
        if not self.formulated and not self._done():
            self._compress()
        if self.best is not None and not self._done():
            self._offer(polish(self.problem, self.best, self.budget, self.control))
            self._recreate(1.0)

    def _attempt(self, formulations: Iterator[Attempt]) -> None:
        while not self._done() and (following := next(formulations, None)) is not None:
            self._try(following)

    def _classical(self) -> None:
        """One of the classical strategies: it knows nothing of a gap, so all that it offers is looked at."""
        if self.strategy == "rockmate":
            self._again()
            return
        for found in CLASSICAL[self.strategy](self.shared.chain, self.budget, self.control):
            self._offer(found)

    def _greedy(self) -> None:
        for found in from_nothing(self.problem, max(self.budget, self.floor), self.control):
            self._offer(found)

    def _strengthen(self) -> None:
        """Prove more, where more might be proven."""
        if self.best is not None and not self._done():
            enough = self.best.time - int(self.gap * self.baseline.time)
            proven = stronger_bound(self.shared.cuts, self.budget, self.control, enough=enough)
            self.bound = max(self.bound, proven)

    def _compress(self) -> None:
        """No formulation fits: from the smallest peak that the flat ones reach, go on greedily."""
        for length in FLAT:
            attempt = self.shared.attempt(f"flat-{length}", partial(flat_windows, self.problem, length))
            found = attempt.smallest(self.control)
            self._offer(found)
            if found is None or found.peak <= self.budget:
                break
            smaller = squeeze(self.problem, found.reruns, max(self.budget, self.floor), self.control)
            found = judge(self.problem, smaller, "greedy")
            self._offer(found)
            if found.peak <= self.budget:
                break

    def _recreate(self, share: float) -> None:
        """Ruin and recreate, as many rounds as take a few seconds: one costs about the square of the operations."""
        if self.best is not None and not self._done():
            rounds = max(FEWEST, int(share * ROUNDS * min(1.0, (USUAL / len(self.problem.forward)) ** 2)))
            self._offer(recreate(self.problem, self.best, self.budget, self.control, rounds, self._good))

    def _blocks(self) -> None:
        """Choose among plans of blocks, where blocks repeat or nothing else is asked for."""
        if not self.shared.leaves or self.strategy not in ("auto", "hierarchical"):
            return
        shapes = Counter(form(self.problem.graph, leaf).key for leaf in self.shared.leaves)
        if self.strategy == "auto" and max(shapes.values()) < REPEATED:
            return
        levels = self.shared.levels(self.control)
        self.shared.menu = tuple(levels.menu(MENU))
        self._offer(levels.run(self.control, self.budget, gap=TIGHT))
        if not self._done():
            self._again()

    def _again(self) -> None:
        """Blocks that run again as a whole, beside their plans; what does not quite fit is a start for squeezing."""
        found = list(rotor(self.shared.chain, self.budget, self.control, "rockmate", self.shared.plans(self.control)))
        for candidate in found:
            self._offer(candidate)
        over = {(c.time, c.peak): c for c in found if c.peak > self.budget}
        for _, candidate in sorted(over.items())[:NEAR]:
            smaller = squeeze(self.problem, candidate.reruns, self.budget, self.control)
            self._offer(judge(self.problem, smaller, "rockmate"))
        if self.best is not None:
            self._offer(polish(self.problem, self.best, self.budget, self.control))

    def _flat(self) -> Iterator[Attempt]:
        if self.strategy in ("auto", "flat"):
            for length in FLAT:
                yield self.shared.attempt(f"flat-{length}", partial(flat_windows, self.problem, length))

    def _staged(self) -> Iterator[Attempt]:
        """Small ones first, as long as they stay solvable."""
        if self.strategy in ("auto", "staged"):
            for length, above in STAGED:
                w = staged_windows(self.problem, length, above)
                if len(w.position) + len(w.need) <= LARGEST:
                    yield self.shared.attempt(f"staged-{length}-{above}", lambda w=w: w)

    def _try(self, attempt: Attempt) -> None:
        w = attempt.windows
        start = None if self.best is None else warm_start(self.problem, w, self.best.reruns)
        found = attempt.run(
            self.control, self.budget, gap=TIGHT, goal=self._percent(self.bound) + 100 * self.gap, start=start
        )
        self._offer(found)
        self.formulated |= found is not None
        if found is not None and found is self.best and not self._done():
            again = Attempt(self.problem, refined(self.problem, w, found.chosen), self.baseline.peak, attempt.strategy)
            goal = self._percent(self.bound) + 100 * self.gap
            self._offer(again.run(self.control, self.budget, gap=TIGHT, goal=goal, start=found.chosen))

    def _offer(self, found: Candidate | None) -> None:
        """Take a candidate if it fits and is the best so far; remember the smallest peak."""
        if found is None:
            return
        self.smallest = min(self.smallest, found.peak)
        self.shared.keep(found)
        if found.peak <= self.budget and better(self.best, found) is found and found is not self.best:
            self.best = found
            self.control.say(f"{found.strategy}: {self._percent(found.time):.2f}% more time, peak {found.peak} bytes")

    def _percent(self, time: int) -> float:
        return 100.0 * (time / max(1, self.baseline.time) - 1.0)

    def _done(self) -> bool:
        return self.control.stopped() or (self.best is not None and self._good(self.best))

    def _good(self, found: Candidate) -> bool:
        """Whether it is proven to be as good as was asked."""
        return found.time - self.bound <= self.gap * self.baseline.time

    def _infeasible(self) -> InfeasibleError:
        """Tell what would be possible: mostly, greedy search ends near the floor."""
        if self.strategy != "none" and self.smallest > self.floor and not self.shared.squeezed:
            self.shared.squeezed = True
            with Control(GRACE) as self.control:
                self._compress()
                self._greedy()
        return InfeasibleError(self.budget, self.smallest, self.floor)
