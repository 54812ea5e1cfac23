"""One budget for several kinds of parts: what each gets is chosen among all that searches find for it (`part_choice`).

Each kind is searched as if all calls were of its kind, for what a call holds between forward and backward counts beside
all other calls, those of other kinds, too: a kind that is called once would have its least peak where it holds much.
Fast strategies search around the share that the budget is of the step without recomputation; then each kind is searched
once for what the others leave it.
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

PROBES = ("greedy", "flat")  # strategies that are requested many shares, the fastest first
SHARES = (1.5, 1.25, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of what the budget leaves of a kind without recomputation
PROVEN = 1e-9  # gap of what is the fastest


def as_if_all(steps: Sequence[Hierarchy]) -> list[Hierarchy]:
    """The step of each kind, called as often as all parts are."""
    calls = sum(step.captured.graph.calls for step in steps)
    return [
        replace(step, captured=replace(step.captured, graph=replace(step.captured.graph, calls=calls)))
        for step in steps
    ]


class SharedBudget:
    """The search for a schedule of each kind of part, with which all together stay within one budget."""

    def __init__(self, graphs: Sequence[Graph], sweeps: Sequence[Sweep], budget: int, strategy: str) -> None:
        """graphs: of the kinds, with their own calls. sweeps: of the same, `as_if_all`. budget: bytes of all together.
        strategy: what the user requested."""
        self._graphs, self._sweeps, self._budget = graphs, sweeps, budget
        self._probes = [policy(one) for one in (PROBES if strategy == AUTO.name else (strategy,))]
        self._seen: list[dict[tuple[FlatRecompute, ...], PartChoice]] = [{} for _ in graphs]

    def solutions(self) -> list[Solution]:
        """By kind, with the figures of its own calls. Raises InfeasibleError, with a peak that the same call meets."""
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
        """What the first of the fast strategies that has anything finds, for ever less memory as long as they have."""
        sweep = self._sweeps[at]
        for part in SHARES:
            limit = int(min(1.0, share * part) * sweep.baseline_peak)
            tried = (sweep.solve(limit, policy=probe, effort=QUICK) for probe in self._probes)
            if limit < sweep.floor or sweep.interrupted or not any(found is not None for found in tried):
                break
        self._take(at, sweep.candidates)

    def _fitting(self) -> tuple[PartChoice, ...]:
        """What fits once each kind was searched for its smallest peak."""
        least = [
            [choice_of(graph, one) for one in sweep.least()]
            for graph, sweep in zip(self._graphs, self._sweeps, strict=True)
        ]
        for at, found in enumerate(least):
            self._take(at, [one.candidate for one in found])
        chosen = fastest(self._kinds(), self._budget)
        if chosen is None:
            floor = max(sweep.floor for sweep in self._sweeps)
            raise InfeasibleError(self._budget, peak_of(smallest(least)), floor, AUTO.name)
        return chosen

    def _improved(self, chosen: tuple[PartChoice, ...], at: int) -> tuple[PartChoice, ...]:
        """With one kind searched for all that the others leave it."""
        own, sweep, graph = chosen[at], self._sweeps[at], self._graphs[at]
        others = [one for other, one in enumerate(chosen) if other != at]
        at_work = max(own.at_work, *(one.at_work for one in others))
        held = self._budget - at_work - sum(one.held for one in others)
        limit = at_work + held * sweep.step.captured.graph.calls // graph.calls
        sweep.solve(max(limit, own.candidate.peak))
        self._take(at, sweep.candidates)
        found = fastest(self._kinds(), self._budget)
        assert found is not None
        return found

    def _take(self, at: int, candidates: Sequence[Candidate]) -> None:
        for one in candidates:
            if one.recomputes not in self._seen[at]:
                self._seen[at][one.recomputes] = choice_of(self._graphs[at], one)

    def _kinds(self) -> list[list[PartChoice]]:
        return [list(seen.values()) for seen in self._seen]

    def _solution(self, at: int, choice: PartChoice) -> Solution:
        """A choice as one of this kind's own calls. What was proven is not about these: no bound but the time without
        recomputation is left."""
        graph, sweep, found = self._graphs[at], self._sweeps[at], choice.candidate
        own, base = simulate(link(graph, found.recomputes)), simulate(link(graph))
        gap = (own.time - base.time) / max(1, base.time)
        return Solution(
            found.recomputes,
            own.peak,
            own.time,
            base.peak,
            base.time,
            lower_bound=base.time,
            gap=gap,
            stopped_by=self._stopped_by(gap),
            strategy=found.strategy,
            solver=found.solver,
            menu=next((one.menu for one in reversed(sweep.found.values())), ()),
        )

    def _stopped_by(self, gap: float) -> StoppedBy:
        if gap <= PROVEN:
            return "optimal"
        if any(sweep.interrupted for sweep in self._sweeps):
            return "interrupted"
        met = {one.stopped_by for sweep in self._sweeps for one in sweep.found.values()}
        return "time" if "time" in met else "heuristic"
