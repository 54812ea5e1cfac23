"""The integer program of one node (H-ILP): plans of its parts, parts that run again, and storages held meanwhile.

The backward has a stage for each part, the last part first. At the beginning of a stage, parts up to its own may run
their forward again, in forward order.

    have[c, j, o]   part j holds by option o when the stage of part c begins; of the first stage: its first run does so
    again[c, j, o]  part j runs again in stage c, and then holds by option o
    use[c, o]       the backward of part c runs by option o
    hold[c, d]      storage d, which several parts read, is in memory when stage c begins
    there[c, d, j]  it is in memory when part j may run again in stage c (the part after c: when the backward of c runs)

    minimise  sum of time[j, o] * again[c, j, o] + extra[c, o] * use[c, o]
              (+ price * bytes held at the forward/backward boundary)
    single    sum of use[c, o] = 1; again and have of one part in one stage at most 1 per option, again in all at most 1
    option    use[c, o] <= have[c, c, o] + again[c, c, o];
              have[c', j, o] <= have[c, j, o] + again[c, j, o], where c' is the next stage
    flow      there[c, d, j+1] <= there[c, d, j], the first after its producer p: <= hold[c, d] + sum of again[c, p, o];
              hold[c', d] <= there[c, d, c+1]
    need      there[c, d, j] >= again[c, j, o], and there[c, d, c+1] >= use[c, o] (or 1), for storages that these read
    memory    bytes held in the first forward, when parts run again, and in each backward <= limit

A part may hold by several options at a time, because it may run again by an option other than before. J. Gusak et al.,
"HiRemate", ICML 2025, section 4 (H-ILP), has the same model with a step for each run of a part. Differences: figures of
options come from the simulator; bytes beside the parts (gradients still to be read) are those of the step without
recomputation; and a storage is freed between two parts that run again without a variable of its own (`there` falls).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.link import Execution, link, simulate
from remate_runtime.support.gc_pause import gc_paused

from ..deadline import Deadline
from ..effort import Effort
from ..milp.formulation import PARTS
from ..milp.highs import Result, SolveOptions, binaries
from ..milp.solver_model import HIGHS, solver_model
from ..problem import Problem
from ..pyomo_api import Model, constraints, pyo
from .options import LevelPart, mapped


class LevelModel:
    """The program of one node.

    Args:
        problem: The node's operations.
        parts: Its parts, in forward order.
        solver: Name of the solver of integer programs.

    Attributes:
        baseline: Bytes of the node's peak without recomputation.
    """

    def __init__(self, problem: Problem, parts: Sequence[LevelPart], solver: str = HIGHS) -> None:
        self.problem, self.parts = problem, tuple(parts)
        self.stages = [c for c in range(len(parts) - 1, -1, -1) if parts[c].backward[0] < parts[c].backward[1]]
        self.maker = {s: j for j, part in enumerate(parts) for s in part.shared}
        self._reads()
        self._bases()
        self.unit = max(self.baseline, 1) / PARTS
        self.percent = max(problem.baseline_time, 1) / 100.0
        with gc_paused():
            self.model: Any = self._build()
            self.engine = solver_model(self.model, solver)
        self._limit = self.engine.columns([self.model.limit])
        self._time = self.engine.cost.copy()
        self._held = self.engine.columns([self.model.held])
        self._again: list[tuple[int, int, int]] = list(self.model.again)
        self._used: list[tuple[int, int]] = list(self.model.use)
        self._columns = [self.engine.columns(v.values()) for v in (self.model.again, self.model.use)]

    def _reads(self) -> None:
        """Set, for shared storages that are not pinned, the backwards that always read them and the last forward
        that does."""
        problem = self.problem
        self.must: list[set[int]] = []
        self.last: dict[int, int] = dict.fromkeys(self.maker, -1)
        self.loose = [s for s in self.maker if s not in problem.pinned]
        for c, part in enumerate(self.parts):
            inside = range(*part.backward)
            self.must.append({s for s in self.loose if any(i in inside for i in problem.readers[s])})
            for s in self.maker:
                if any(part.forward[0] <= i < part.forward[1] for i in problem.readers[s]):
                    self.last[s] = c

    def _wanted(self, c: int, s: int) -> bool:
        """Return whether the stage of part c, or a later one, may read a storage."""
        readers = (*self.problem.readers[s],)
        return any(
            any(i in range(*self.parts[k].backward) or i in range(*self.parts[k].forward) for i in readers)
            for k in range(c + 1)
        )

    def _bases(self) -> None:
        """Set bytes beside those of the parts at the worst moments of each forward and backward, and when each
        backward begins."""
        problem, parts = self.problem, self.parts
        linked = link(problem.graph)
        timeline = simulate(linked)
        self.baseline = timeline.peak
        of = {i: c for c, part in enumerate(parts) for i in (*range(*part.forward), *range(*part.backward))}
        worst = [[0, 0, 0] for _ in parts]
        begun: set[int] = set()
        for n, (event, held) in enumerate(zip(linked.events, timeline.during, strict=True)):
            if isinstance(event, Execution):
                c, backward = of[event.op], event.op >= problem.backward_start
                worst[c][backward] = max(worst[c][backward], held)
                if backward and c not in begun:
                    begun.add(c)
                    worst[c][2] = timeline.after[n - 1]
        self.base: list[tuple[int, int, int]] = []
        inner = [part.options[part.keep].inner for part in parts]
        size = problem.size
        for c, part in enumerate(parts):
            keep = part.options[part.keep].plan
            below = sum(inner[:c])
            early = sum(size[s] for s, j in self.maker.items() if j < c and self._kept(s, c, c))
            late = sum(size[s] for s, j in self.maker.items() if j != c and self._kept(s, c, -1))
            own = inner[c] + sum(size[s] for s in part.shared if self._kept(s, c, -1))
            forward = worst[c][0] - below - early - keep.forward_peak
            backward = worst[c][1] - below - late - keep.backward_peak
            self.base.append((forward, backward, worst[c][2] - below - late - own))

    def _kept(self, s: int, c: int, forward: int) -> bool:
        """Return whether a storage is in memory without recomputation while part c runs.

        Args:
            s: The storage.
            c: The part.
            forward: The number of the part if its forward runs; -1 if its backward runs.
        """
        if s in self.problem.pinned:
            return True
        return self._wanted(c if forward < 0 else len(self.parts) - 1, s) or 0 <= forward <= self.last[s]

    def _build(self) -> Model:
        m, parts = self._variables(), self.parts
        rows = [*self._option_rows(m), *self._flow_rows(m), *self._need_rows(m), *self._memory_rows(m)]
        rows.append(m.held == self._at_backward_start(m))
        m.rows = constraints(rows)
        keep = [part.options[part.keep].plan.time for part in parts]
        again: dict[tuple[int, int, int], Any] = dict(m.again.items())
        use: dict[tuple[int, int], Any] = dict(m.use.items())
        m.time = pyo.Objective(
            expr=sum(parts[j].options[o].time / self.percent * v for (_, j, o), v in again.items())
            + sum((parts[c].options[o].plan.time - keep[c]) / self.percent * v for (c, o), v in use.items())
            + 0.0 * m.limit
            + 0.0 * m.held
        )
        return m

    def _variables(self) -> Any:
        m, parts, stages = pyo.ConcreteModel(), self.parts, self.stages
        have = [(c, j, o) for c in stages for j in range(c + 1) for o in range(len(parts[j].options))]
        hold = [(c, s) for c in stages for s in self.loose if self._wanted(c, s)]
        first = stages[0] if stages else -1

        def domain(m: Any, c: int, j: int, o: int) -> Any:
            return pyo.Binary if c == first else pyo.Reals

        m.have = pyo.Var(have, domain=domain, bounds=(0, 1))
        m.again = pyo.Var([(c, j, o) for c, j, o in have if parts[j].options[o].again], domain=pyo.Binary)
        m.use = pyo.Var([(c, o) for c in stages for o in range(len(parts[c].options))], domain=pyo.Binary)
        m.hold = pyo.Var(hold, bounds=(0, 1))
        m.there = pyo.Var([(c, s, j) for c, s in hold for j in range(self.maker[s] + 1, c + 2)], bounds=(0, 1))
        m.limit, m.held = pyo.Var(bounds=(0, None)), pyo.Var()
        return m

    def _next(self) -> Iterator[tuple[int, int]]:
        yield from zip(self.stages, self.stages[1:], strict=False)

    def _option_rows(self, m: Any) -> Iterator[Any]:
        for c in self.stages:
            options = range(len(self.parts[c].options))
            yield sum(m.use[c, o] for o in options) == 1
            for o in options:
                yield m.use[c, o] <= self._has(m, c, c, o)
            for j in range(c + 1):
                runs = [m.again[c, j, o] for o in range(len(self.parts[j].options)) if (c, j, o) in m.again]
                if runs:
                    yield sum(runs) <= 1
        for c, later in self._next():
            for j in range(later + 1):
                for o in range(len(self.parts[j].options)):
                    yield m.have[later, j, o] <= self._has(m, c, j, o)
        for j in range(self.stages[0] + 1) if self.stages else ():
            yield sum(m.have[self.stages[0], j, o] for o in range(len(self.parts[j].options))) <= 1

    def _has(self, m: Any, c: int, j: int, o: int) -> Any:
        return m.have[c, j, o] + _known(m.again, (c, j, o))

    def _runs(self, m: Any, c: int, j: int) -> Any:
        """Return whether part j runs again in stage c."""
        return sum(m.again[c, j, o] for o in range(len(self.parts[j].options)) if (c, j, o) in m.again)

    def _flow_rows(self, m: Any) -> Iterator[Any]:
        for c, s in m.hold:
            maker = self.maker[s]
            if maker > c:  # a later part, whose forward does not run again
                continue
            yield m.there[c, s, maker + 1] <= m.hold[c, s] + self._runs(m, c, maker)
            for j in range(maker + 1, c + 1):
                yield m.there[c, s, j + 1] <= m.there[c, s, j]
        for c, later in self._next():
            for s in self.loose:
                if (later, s) in m.hold and (c, s) in m.hold:
                    yield m.hold[later, s] <= self._there(m, c, s, c + 1)

    def _there(self, m: Any, c: int, s: int, at: int) -> Any:
        """Return whether a storage is in memory in stage c when part `at` runs."""
        return m.there[c, s, at] if (c, s, at) in m.there else m.hold[c, s]

    def _need_rows(self, m: Any) -> Iterator[Any]:
        for c in self.stages:
            for s in self.must[c]:
                if (c, s) in m.hold:
                    yield self._there(m, c, s, c + 1) >= 1
            for o, option in enumerate(self.parts[c].options):
                for s in option.reads:
                    if (c, s) in m.hold:
                        yield self._there(m, c, s, c + 1) >= m.use[c, o]
        again: list[tuple[int, int, int]] = list(m.again)
        for c, j, o in again:
            for s in self.parts[j].options[o].forward_reads:
                if (c, s) in m.hold and self.maker[s] < j:
                    yield m.there[c, s, j] >= m.again[c, j, o]

    def _memory_rows(self, m: Any) -> Iterator[Any]:
        unit, size = self.unit, self.problem.size
        first = self.stages[0] if self.stages else -1
        pinned = [s for s in self.maker if s in self.problem.pinned]
        for c in range(len(self.parts)):
            held = self._inner(m, [(first, i) for i in range(min(c, first + 1))])
            for s, maker in self.maker.items():
                if maker < c and s not in self.problem.pinned:
                    early = c <= self.last[s]
                    held += size[s] / unit * (1 if early else _known(m.hold, (first, s)))
            fixed = self.base[c][0] + sum(size[s] for s in pinned if self.maker[s] < c)
            yield held + fixed / unit + self._peak(m, c, first) <= m.limit
        for c in self.stages:
            kept = sum(size[s] for s in pinned if self.maker[s] != c)
            for j in range(c + 1):
                runs = [(o, m.again[c, j, o]) for o in range(len(self.parts[j].options)) if (c, j, o) in m.again]
                if runs:
                    held = self._inner(m, [(c, i) for i in range(c + 1)]) + self._fresh(m, c, j)
                    held += self._shared(m, c, j, skip=j)
                    peak = sum(self.parts[j].options[o].plan.forward_peak / unit * v for o, v in runs)
                    outs = sum(size[s] for s in self.parts[c].shared if s in self.problem.pinned and c != j)
                    yield held + (self.base[c][2] + kept + outs) / unit + peak <= m.limit
            held = self._inner(m, [(c, i) for i in range(c)]) + self._fresh(m, c, c) + self._shared(m, c, c + 1, skip=c)
            peak = sum(o.plan.backward_peak / unit * m.use[c, n] for n, o in enumerate(self.parts[c].options))
            yield held + (self.base[c][1] + kept) / unit + peak <= m.limit

    def _peak(self, m: Any, c: int, first: int) -> Any:
        """Return the peak of the first forward of a part, which depends on the option by which it holds."""
        options, unit = self.parts[c].options, self.unit
        least = min(option.plan.forward_peak for option in options) / unit
        if c > first:
            return least
        return least + sum((o.plan.forward_peak / unit - least) * m.have[first, c, n] for n, o in enumerate(options))

    def _inner(self, m: Any, which: Sequence[tuple[int, int]]) -> Any:
        """Return bytes that parts hold when stages begin."""
        return sum(o.inner / self.unit * m.have[c, j, n] for c, j in which for n, o in enumerate(self.parts[j].options))

    def _fresh(self, m: Any, c: int, before: int) -> Any:
        """Return bytes of parts that have run again in stage c before part `before`."""
        return sum(
            o.inner / self.unit * m.again[c, j, n]
            for j in range(before)
            for n, o in enumerate(self.parts[j].options)
            if (c, j, n) in m.again
        )

    def _shared(self, m: Any, c: int, at: int, skip: int) -> Any:
        """Return bytes of shared storages in stage c when part `at` runs, except those that part `skip` produces."""
        unit, size, hold = self.unit, self.problem.size, list[tuple[int, int]](m.hold)
        return sum(size[s] / unit * self._there(m, c, s, at) for k, s in hold if k == c and self.maker[s] != skip)

    def _at_backward_start(self, m: Any) -> Any:
        if not self.stages:
            return 0.0
        first, size, hold = self.stages[0], self.problem.size, list[tuple[int, int]](m.hold)
        shared = sum(size[s] / self.unit * m.hold[c, s] for c, s in hold if c == first)
        return self._inner(m, [(first, j) for j in range(first + 1)]) + shared

    def least_time(self, deadline: Deadline, limit: float) -> float:
        """Return a lower limit in ns of the step's time in any solution under `limit` bytes, by the relaxation."""
        self.engine.set_cost(self._time)
        self.engine.set_bounds(self._limit, np.array([0.0]), np.array([limit / self.unit]))
        result = self.engine.solve(deadline, SolveOptions(stage="relaxation", relax=True))
        return self.problem.baseline_time + result.objective * self.percent

    def solve(
        self, deadline: Deadline, limit: float, effort: Effort, *, price: float = 0.0, gap: float = 0.0, stage: str = ""
    ) -> Result:
        """Return the program's solution.

        Args:
            deadline: Ends the solve early.
            limit: Bytes.
            effort: How hard to search.
            price: ns for each byte held at the forward/backward boundary.
            gap: Share of the step's time at which the solve stops.
            stage: Text for progress lines.
        """
        cost = self._time.copy()
        cost[self._held[self._held >= 0]] = price * self.unit / self.percent
        self.engine.set_cost(cost)
        self.engine.set_bounds(self._limit, np.array([0.0]), np.array([limit / self.unit]))
        return self.engine.solve(
            deadline,
            SolveOptions(stage=stage, absolute_gap=100.0 * gap, nodes=effort.selection_nodes, work=effort.work),
        )

    def recomputes(self, result: Result) -> list[FlatRecompute]:
        """Return the recomputations of a solution, over the node's operations, in step order."""
        assert result.x is not None
        again, used = (binaries(result.x, columns) for columns in self._columns)
        chosen: list[FlatRecompute] = []
        for (c, j, o), taken in sorted(zip(self._again, again, strict=True)):
            if taken:
                chosen += [FlatRecompute(f, self.parts[c].backward[0]) for f in self.parts[j].options[o].again]
        for (c, o), taken in zip(self._used, used, strict=True):
            if taken:
                plan = self.parts[c].options[o].plan
                chosen += mapped(self.parts[c], plan.recomputes)
        return sorted(chosen, key=lambda r: r.before)  # stable: parts that run again come before the plan of the stage


def _known(variables: Any, key: tuple[int, ...]) -> Any:
    """Return a variable, or 0 if it does not exist."""
    return variables[key] if key in variables else 0  # noqa: SIM401 (Pyomo's have no `get`)
