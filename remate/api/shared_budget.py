"""One budget for several kinds of parts. `part_choice` chooses among the plans that searches find for each kind.

Each kind is searched as if all calls were of its kind, because the bytes that a call holds between forward and backward
count beside the calls of all kinds. Fast strategies search around the budget's share of the baseline. Then each kind is
searched once more, for the memory that the others leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.format import StoppedBy
from remate_runtime.link import link, simulate

from ..errors import InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..strategy import AUTO, QUICK, Candidate, Solution, policy
from .frontier import Sweep
from .part_choice import PartChoice, choice_of, fastest, peak_of, smallest

PROBES = ("greedy", "flat")  # strategies that search many shares, the fastest first
SHARES = (1.5, 1.25, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the budget's share of the baseline
PROVEN = 1e-9  # gap of a proven optimum


def as_if_all(steps: Sequence[Hierarchy]) -> list[Hierarchy]:
    """The step of each kind, with the number of calls of all kinds."""
    calls = sum(step.captured.graph.calls for step in steps)
    return [
        replace(step, captured=replace(step.captured, graph=replace(step.captured.graph, calls=calls)))
        for step in steps
    ]


class SharedBudget:
    """Searches a schedule for each kind of part, all within one budget."""

    def __init__(self, graphs: Sequence[Graph], sweeps: Sequence[Sweep], budget: int, strategy: str) -> None:
        """Create the search.

        Args:
            graphs: Graph of each kind, with its own number of calls.
            sweeps: Sweep of each kind, with the steps of `as_if_all`.
            budget: Budget of all kinds together, in bytes.
            strategy: The requested strategy.
        """
        self._graphs, self._sweeps, self._budget = graphs, sweeps, budget
        self._probes = [policy(name) for name in (PROBES if strategy == AUTO.name else (strategy,))]
        self._seen: list[dict[tuple[FlatRecompute, ...], PartChoice]] = [{} for _ in graphs]

    def solutions(self) -> list[Solution]:
        """A solution per kind, with the figures of its own calls. Raises InfeasibleError with an achievable peak."""
        bases = [choice_of(graph, sweep.baseline) for graph, sweep in zip(self._graphs, self._sweeps, strict=True)]
        share = self._budget / max(1, peak_of(bases))
        for at, sweep in enumerate(self._sweeps):
            self._take(at, [sweep.baseline])
            if share < 1.0:
                self._probe(at, share)
        chosen = fastest(self._kinds(), self._budget) or self._fitting()
        for at in sorted(range(len(chosen)), key=lambda at: -chosen[at].time):
            if not any(sweep.interrupted for sweep in self._sweeps):
                chosen = self._improved(chosen, at)
        return [self._solution(at, choice) for at, choice in enumerate(chosen)]

    def _probe(self, at: int, share: float) -> None:
        """Search ever smaller shares with the first fast strategy that has a plan, until none has."""
        sweep = self._sweeps[at]
        for part in SHARES:
            limit = int(min(1.0, share * part) * sweep.baseline_peak)
            tried = (sweep.solve(limit, policy=probe, effort=QUICK) for probe in self._probes)
            if limit < sweep.floor or sweep.interrupted or not any(solution is not None for solution in tried):
                break
        self._take(at, sweep.candidates)

    def _fitting(self) -> tuple[PartChoice, ...]:
        """The fastest choice after a search for the smallest peak of each kind."""
        least = [
            [choice_of(graph, candidate) for candidate in sweep.least()]
            for graph, sweep in zip(self._graphs, self._sweeps, strict=True)
        ]
        for at, choices in enumerate(least):
            self._take(at, [candidate.candidate for candidate in choices])
        chosen = fastest(self._kinds(), self._budget)
        if chosen is None:
            floor = max(sweep.floor for sweep in self._sweeps)
            raise InfeasibleError(self._budget, peak_of(smallest(least)), floor, AUTO.name)
        return chosen

    def _improved(self, chosen: tuple[PartChoice, ...], at: int) -> tuple[PartChoice, ...]:
        """Search one kind again with the memory that the others leave."""
        current, sweep, graph = chosen[at], self._sweeps[at], self._graphs[at]
        others = [choice for other, choice in enumerate(chosen) if other != at]
        at_work = max(current.at_work, *(choice.at_work for choice in others))
        held = self._budget - at_work - sum(choice.held for choice in others)
        limit = at_work + held * sweep.step.captured.graph.calls // graph.calls
        sweep.solve(max(limit, current.candidate.peak))
        self._take(at, sweep.candidates)
        improved = fastest(self._kinds(), self._budget)
        assert improved is not None
        return improved

    def _take(self, at: int, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            if candidate.recomputes not in self._seen[at]:
                self._seen[at][candidate.recomputes] = choice_of(self._graphs[at], candidate)

    def _kinds(self) -> list[list[PartChoice]]:
        return [list(seen.values()) for seen in self._seen]

    def _solution(self, at: int, choice: PartChoice) -> Solution:
        """The solution of a choice for the calls of its kind. Its bound is the baseline's time: others do not apply."""
        graph, sweep, candidate = self._graphs[at], self._sweeps[at], choice.candidate
        own, base = simulate(link(graph, candidate.recomputes)), simulate(link(graph))
        gap = (own.time - base.time) / max(1, base.time)
        return Solution(
            candidate.recomputes,
            own.peak,
            own.time,
            base.peak,
            base.time,
            lower_bound=base.time,
            gap=gap,
            stopped_by=self._stopped_by(gap),
            strategy=candidate.strategy,
            solver=candidate.solver,
            menu=next((solution.menu for solution in reversed(sweep.by_budget.values())), ()),
        )

    def _stopped_by(self, gap: float) -> StoppedBy:
        if gap <= PROVEN:
            return "optimal"
        if any(sweep.interrupted for sweep in self._sweeps):
            return "interrupted"
        met = {solution.stopped_by for sweep in self._sweeps for solution in sweep.by_budget.values()}
        return "time" if "time" in met else "heuristic"
