"""One strategy on one budget: solve the formulation, place the reruns, ask the simulator, and correct the budget.

The formulation is conservative in places (static windows) and blind in others (order of equal needs, generator states),
so its budget is moved until the simulated peak fits, or until slack that the simulator still sees is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remate_runtime.link import link, simulate
from remate_runtime.step import FlatRerun

from ..problem import Problem
from .formulation import Formulation
from .highs import Control, Result
from .place import place
from .windows import Key, RerunWindows

ROUNDS = 6
CLOSE = 0.004  # share of the budget that is not worth another solve


class Candidate(msgspec.Struct, frozen=True):
    """Reruns as the simulator judges them. chosen: the formulation's variables, if it came from one."""

    reruns: tuple[FlatRerun, ...]
    peak: int
    time: int
    strategy: str
    status: str = "heuristic"
    chosen: dict[Key, bool] = {}


def judge(
    problem: Problem,
    reruns: Sequence[FlatRerun],
    strategy: str,
    status: str = "heuristic",
    chosen: Mapping[Key, bool] = {},
) -> Candidate:
    timeline = simulate(link(problem.graph, reruns))
    return Candidate(tuple(reruns), timeline.peak, timeline.time, strategy, status, dict(chosen))


def better(a: Candidate | None, b: Candidate | None) -> Candidate | None:
    """The faster of two candidates; of equally fast ones, the smaller."""
    if a is None or b is None:
        return a or b
    return b if (b.time, b.peak) < (a.time, a.peak) else a


class Attempt:
    """A formulation kept for several solves."""

    def __init__(self, problem: Problem, w: RerunWindows, reference: int, strategy: str) -> None:
        self.problem, self.windows, self.strategy = problem, w, strategy
        self.formulation = Formulation(problem, w, reference)

    def run(
        self, control: Control, budget: int, *, gap: float, goal: float, start: Mapping[Key, bool] | None = None
    ) -> Candidate | None:
        """The best candidate whose simulated peak fits, or None. In % of the step time: gap at which a solve stops, and
        goal, the extra time that is good enough."""
        best: Candidate | None = None
        target, too_much = float(budget), float("inf")
        for _ in range(ROUNDS):
            if control.stopped():
                break
            result = self.formulation.solve(control, target, gap=gap, goal=goal, start=start, stage=self.strategy)
            if result.x is None:
                break
            found = self._candidate(result)
            start = found.chosen
            if found.peak > budget:
                too_much = min(too_much, target)
                target -= (found.peak - budget) + 0.0005 * budget
                continue
            best = better(best, found)
            unseen = self.formulation.peak(result) - found.peak  # what the formulation counted and is not there
            if unseen <= CLOSE * budget or too_much < float("inf") or result.objective <= goal:
                break
            target += unseen
        return best

    def smallest(self, control: Control) -> Candidate | None:
        """The smallest peak that this formulation finds."""
        result = self.formulation.smallest(control, relative_gap=0.005, stage="smallest peak")
        return None if result.x is None else self._candidate(result)

    def _candidate(self, result: Result) -> Candidate:
        chosen = self.formulation.chosen(result)
        reruns = place(self.problem, self.windows, chosen)
        return judge(self.problem, reruns, self.strategy, result.status, chosen)
