"""A lower bound on the time of any schedule of a graph under a budget, as an integer program.

Take cuts: operations k1 < k2 < … of the backward, or of a step without a backward. In every schedule, a forward storage
that an operation after a cut reads is in memory while the cut's operation runs, or its producer runs again after the
cut. In the second case, each storage that the producer reads is in memory, or computed again after the cut, too.
Storages in memory fit into the budget, less the bytes that are live there in any schedule. A storage in memory at a
later cut was in memory at the earlier cut, or was computed again between them. A *stretch* (c, d) reaches from cut c to
cut d, or to the end. Let hold[s, c] mean that s is in memory at c, and recompute[f, c, d] that f runs again in the
stretch, once or more. Then no schedule beats the optimum of the program

    minimise  sum of time[f] * recompute[f, c, c + 1]
    need      hold[s, c] + recompute[producer(s), c, d] >= 1       for every s that a first run reads in the stretch
    closure   recompute[f, c, d] <= hold[u, c] + recompute[producer(u), c, d]    for every forward storage u of f
    chain     hold[s, d] <= hold[s, c] + recompute[producer(s), c, d]
    parts     recompute[f, c, d] <= sum of recompute[f, part], and >= each     for the shorter stretches of (c, d)
    memory    sum of bytes[s] * hold[s, c] <= budget - forced[c]

With cuts in the forward, storages that are first computed after a cut count as available: their rows, in stretches from
that cut, do not hold. Any dual bound of the program is valid. With integers, the stretches between neighbouring cuts
suffice. Relaxations need more: they spread one recomputation over many stretches, and a long stretch repeats the demand
of two cuts alone.

Assumptions, all of them rules of the format: forward and backward operations run once each in the given order; besides,
forward operations run again, whole, anywhere; a storage is resident in full or not at all; operations cost what the
profile says. No partition is assumed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from math import ceil
from typing import Any, Literal

import msgspec
import numpy as np

from remate_runtime.support.gc_pause import gc_paused

from ..deadline import Deadline
from ..effort import Effort
from ..milp.formulation import PARTS, linear
from ..milp.highs import HighsModel, Result, SolveOptions, binaries
from ..pyomo_api import Model, pyo
from .cut_step import CutStep
from .floor import arguments

Stretch = tuple[int, int]  # from a cut to a later one, or to the end (the number of cuts)
StretchKind = Literal["short", "long", "overlapping"]  # which stretches a model has


class CutSolution(msgspec.Struct, frozen=True):
    """What a solution of the model says.

    Attributes:
        hold: (storage, cut) where the storage is in memory.
        recompute: By cut, the operations that run again in the stretch from it to the next one.
    """

    hold: frozenset[tuple[int, int]]
    recompute: tuple[frozenset[int], ...]


def stretches(count: int, kind: StretchKind) -> dict[Stretch, tuple[Stretch, ...]]:
    """Return stretches of `count` cuts, the short ones first, each with the shorter stretches that it consists of.

    `short` ones reach from each cut to the next one. `long` adds those from each cut to the end. `overlapping` also
    adds those over 2, 4, 8, … cuts, each beginning in the middle of the previous one.
    """
    chosen = {(c, c + 1) for c in range(count)}
    chosen |= {(c, count) for c in range(count) if kind != "short"}
    width = 2
    while kind == "overlapping" and width < 2 * count:
        chosen |= {(c, min(c + width, count)) for c in range(0, count, width // 2)}
        width *= 2
    parts_of: dict[Stretch, tuple[Stretch, ...]] = {}
    for stretch in sorted(chosen, key=lambda ends: (ends[1] - ends[0], ends)):
        at, end = stretch
        parts: list[Stretch] = []
        while at < end and end - stretch[0] > 1:
            parts.append(max((s for s in parts_of if s[0] == at and s[1] <= end), key=lambda s: s[1]))
            at = parts[-1][1]
        parts_of[stretch] = tuple(parts)
    return parts_of


class CutModel:
    """The model for a number of cuts. Places of cuts and the budget change between solves.

    Args:
        step: The step.
        count: Number of cuts.
        reference: Bytes that scale memory (any peak).
        kind: As in `stretches`.
    """

    def __init__(self, step: CutStep, count: int, reference: int, kind: StretchKind = "long") -> None:
        self.step, self.problem, self.count = step, step.problem, count
        self.stretches = stretches(count, kind)
        self.unit = max(reference, 1) / PARTS
        self.percent = max(self.problem.baseline_time, 1) / 100.0
        self.operations, self.storages = step.operations, step.storages
        with gc_paused():
            self.model: Any = self._build()
            self.engine = HighsModel(self.model)
        self.variables = len(self.engine.cost)
        self._hold: Mapping[tuple[int, int], int] = {key: self.engine.column(v) for key, v in self.model.hold.items()}

    def _build(self) -> Model:
        step, problem, cuts = self.step, self.problem, range(self.count)
        m: Any = pyo.ConcreteModel()
        m.free = pyo.Param(cuts, initialize=0.0, mutable=True)  # bytes that are free in any schedule
        m.hold = pyo.Var(self.storages, cuts, domain=pyo.Binary)
        may = {f: (0, int(f not in problem.once)) for f in self.operations}

        def bounds(m: Any, f: int, c: int, d: int) -> tuple[int, int]:
            return may[f]

        m.recompute = pyo.Var(self.operations, list(self.stretches), domain=pyo.Binary, bounds=bounds)

        def available(s: int, c: int, d: int) -> list[Any]:
            return [m.hold[s, c], m.recompute[problem.producer[s], c, d]]

        def need(m: Any, s: int, c: int, d: int) -> Any:
            return linear(available(s, c, d)) >= 0

        def closure(m: Any, f: int, u: int, c: int, d: int) -> Any:
            return linear([*available(u, c, d), m.recompute[f, c, d]], [1, 1, -1]) >= 0

        def chain(m: Any, s: int, c: int, d: int) -> Any:
            return linear([*available(s, c, d), m.hold[s, d]], [1, 1, -1]) >= 0

        def parted(m: Any, f: int, c: int, d: int) -> Any:
            parts = [m.recompute[f, a, b] for a, b in self.stretches[c, d]]
            return linear([*parts, m.recompute[f, c, d]], [*[1] * len(parts), -1]) >= 0

        def part(m: Any, f: int, c: int, d: int, a: int, b: int) -> Any:
            return linear([m.recompute[f, c, d], m.recompute[f, a, b]], [1, -1]) >= 0

        spans = list(self.stretches)
        whole = [(c, d) for (c, d), parts in self.stretches.items() if parts]
        pairs = [(f, u) for f in self.operations for u in step.reads[f]]
        m.need = pyo.Constraint(self.storages, spans, rule=need)
        m.closure = pyo.Constraint(pairs, spans, rule=closure)
        m.chain = pyo.Constraint(self.storages, [(c, d) for c, d in spans if d < self.count], rule=chain)
        m.parted = pyo.Constraint(self.operations, whole, rule=parted)
        m.part = pyo.Constraint(
            self.operations, [(*span, *part) for span in whole for part in self.stretches[span]], rule=part
        )
        sizes = [problem.size[s] / self.unit for s in self.storages]

        def memory(m: Any, c: int) -> Any:
            return linear([m.hold[s, c] for s in self.storages], sizes) <= m.free[c] / self.unit

        m.memory = pyo.Constraint(cuts, rule=memory)
        keys = [(f, c) for f in self.operations for c in cuts]
        cost = [step.time[f] / self.percent for f, _ in keys]
        m.time = pyo.Objective(expr=linear([m.recompute[f, c, c + 1] for f, c in keys], cost))
        return m

    def nanoseconds(self, extra: float) -> int:
        """Return the least time of any schedule in whole ns.

        Args:
            extra: Additional time in %. Infinite if nothing fits; then every bound is true, and the trivial one is
                returned.
        """
        base = self.problem.baseline_time
        return base if extra == float("inf") else base + max(0, ceil(extra * self.percent * (1 - 1e-6)))

    def solve(
        self,
        deadline: Deadline,
        budget: int,
        effort: Effort,
        places: list[int],
        forced: np.ndarray,
        *,
        relax: bool,
        less: Mapping[int, int] | None = None,
        start: np.ndarray | None = None,
        target: float = -float("inf"),
        gap: float = 0.0,
    ) -> Result:
        """Return additional time in % of the step, with cuts at the operations `places`.

        Args:
            deadline: Ends the solve early.
            budget: Bytes.
            effort: How hard to search.
            places: Operations, ascending.
            forced: As returned by `forced_bytes`.
            relax: Whether to solve the linear relaxation only.
            less: Bytes by which the budget is smaller at some of the cuts, by operation. Then nothing is proven.
            start: A first solution, from `start`.
            target: Additional time in % at which the search may stop.
            gap: Difference to the bound, in % of the step, at which it may stop.
        """
        infinity, problem = float("inf"), self.problem
        ends = [*places, len(problem.real)]
        columns, lower, upper = list[int](), list[float](), list[float]()
        for c, k in enumerate(places):
            self.model.free[c].set_value(budget - int(forced[k]) - (less or {}).get(k, 0))
            resident = set(arguments(problem, k))
            columns += [self._hold[s, c] for s in self.storages]
            lower += [float(s in resident) for s in self.storages]
            upper += [float(problem.producer[s] < k) for s in self.storages]
        for s in self.storages:
            for c, d in self.stretches:
                self.engine.set_rhs(self.model.need[s, c, d], float(self._read(s, ends[c], ends[d])), infinity)
        if places[0] < problem.backward_start:
            self._first_computed_between(places)
        self.engine.set_bounds(np.array(columns), np.array(lower), np.array(upper))
        self.engine.update(self.model.memory.values())
        options = SolveOptions(
            stage="bound",
            nodes=effort.nodes,
            work=effort.work,
            relax=relax,
            start=start,
            target=target,
            absolute_gap=gap,
        )
        return self.engine.solve(deadline, options)

    def _read(self, s: int, begin: int, end: int) -> bool:
        """Return whether an operation between `begin` and `end` reads a storage that is computed before."""
        readers = self.step.readers[s]
        after = bisect_right(readers, begin)
        return self.problem.producer[s] < begin and after < len(readers) and readers[after] < end

    def choice(self, x: np.ndarray) -> CutSolution:
        """Return what a solution says."""
        recompute = self.model.recompute
        held = binaries(x, np.array([*self._hold.values()]))
        again = [
            binaries(x, self.engine.columns(recompute[f, c, c + 1] for f in self.operations)) for c in range(self.count)
        ]
        return CutSolution(
            frozenset(compress(self._hold, held)), tuple(frozenset(compress(self.operations, each)) for each in again)
        )

    def start(self, places: list[int], live: Sequence[Collection[int]]) -> np.ndarray:
        """Return the solution of a schedule, with as few recomputations as its memory at the cuts needs.

        Args:
            places: Operations of the cuts, all in the backward.
            live: By cut, the storages that are in memory there.
        """
        x = np.zeros(self.variables)
        problem, step, ends = self.problem, self.step, [*places, len(self.problem.real)]
        hold = [
            {s for s in self.storages if s in held or not held.isdisjoint(step.joined[problem.producer[s]])}
            for held in map(frozenset, live)
        ]
        for c, held in enumerate(hold):
            wanted = {s for s in self.storages if self._read(s, ends[c], ends[c + 1])}
            wanted |= hold[c + 1] if c + 1 < self.count else set[int]()
            again, waiting = set[int](), list(wanted - held)
            while waiting:
                f = problem.producer[waiting.pop()]
                if f not in again:
                    again.add(f)
                    waiting += [u for u in step.reads[f] if u not in held]
            x[[self._hold[s, c] for s in held]] = 1.0
            spans = [span for span in self.stretches if span[0] <= c < span[1]]
            x[[self.engine.column(self.model.recompute[f, a, d]) for f in again for a, d in spans]] = 1.0
        return x

    def _first_computed_between(self, places: list[int]) -> None:
        """Make storages that are first computed in a stretch, or later, available to its recomputations and at its
        end."""
        producer, infinity = self.problem.producer, float("inf")
        for (_, u, c, _), row in self.model.closure.items():
            self.engine.set_rhs(row, 0.0 if producer[u] < places[c] else -1.0, infinity)
        for (s, c, _), row in self.model.chain.items():
            self.engine.set_rhs(row, 0.0 if producer[s] < places[c] else -1.0, infinity)


def variables(step: CutStep, count: int, kind: StretchKind) -> int:
    """Return how many variables the model has."""
    return count * len(step.storages) + len(stretches(count, kind)) * len(step.operations)
