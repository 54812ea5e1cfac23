"""Moccasin's model: every operation has a few intervals in which its results are retained. CP-SAT solves it.

B. Bartan, H. Li, H. Teague, C. Lott, B. Dilkina, "Moccasin: Efficient tensor rematerialization for neural networks",
ICML 2023. The order of first executions is given. Stage t ends with the first execution of operation t, and
operations run again in it in step order. Operation i has at most `COPIES` retention intervals. The first begins with
its first execution. A further one, if it is active, begins where the operation runs again.

The execution of operation i in stage t has the moment t n + i, of n operations. The paper numbers moments without
gaps, t (t + 1) / 2 + i. With gaps, a moment is linear in the stage, so domains have no holes: presolve takes 0.3
instead of 36 seconds for 250 operations.

    stage[i, c], end[i, c]   integers; active[i, c] boolean: O(n) variables
    begin[i, c]              the moment of operation i in stage[i, c]
    minimise                 sum of time[i] * active[i, c]
    memory                   cumulative: the intervals, weighted by bytes, never exceed the budget
    need                     at every begin of j, for every i that j reads, an interval of i has begun and not ended

It runs in a process of its own, because the libraries of OR-Tools and of highspy define the same symbols.

The paper's two phases: first the excess over the budget is minimised, from the given order. Its solution is the start
of the second phase, within the budget. Effort is CP-SAT's deterministic time, with one worker and a fixed seed. The
worker takes turns between tree search and large neighbourhoods, without which the excess does not fall.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TypeAlias

import msgspec
from ortools.sat.python import cp_model

from .moccasin import Answered, IntervalQuery

SEED = 20260101
SUBSOLVERS = ("default_lp", "quick_restart_no_lp")  # of tree search; CP-SAT would take nine in turns
_Terms: TypeAlias = dict[tuple[int, int], Any]  # numbers, or variables and expressions of CP-SAT, by interval


def main() -> None:
    """Read a query from standard input and write its solution to standard output, both as JSON."""
    requested = msgspec.json.decode(sys.stdin.buffer.read(), type=IntervalQuery)
    sys.stdout.buffer.write(msgspec.json.encode(RetentionIntervals(requested).solve()))


class RetentionIntervals:
    """The model of one query."""

    def __init__(self, requested: IntervalQuery) -> None:
        self.requested, self.copies, self.sources = requested, requested.copies, requested.sources
        self.last = len(requested.time) - 1

    def solve(self) -> Answered | None:
        """Return the best solution within the effort, or None."""
        requested, model, began = self.requested, cp_model.CpModel(), time.monotonic()
        begin, end, active, stage = self._intervals(model)
        self._needs(model, begin, end, active)
        over = self._memory(model, begin, end, active)
        if requested.phase == 1:
            model.minimize(over)
        else:
            model.minimize(sum(requested.time[n] * active[n, c] for n, c in stage))
        for n, c in stage:
            stages = requested.start.get(n, ())
            model.add_hint(active[n, c], c <= len(stages))
            if c <= len(stages):
                model.add_hint(stage[n, c], stages[c - 1])
        solver = cp_model.CpSolver()
        parameters: Any = solver.parameters
        parameters.num_workers = 1
        parameters.interleave_search = True
        parameters.subsolvers.extend(SUBSOLVERS)
        parameters.random_seed = SEED
        parameters.cp_model_probing_level = 0  # probing, symmetries and further passes gain nothing here
        parameters.symmetry_level = 0
        parameters.max_presolve_iterations = 1
        parameters.max_deterministic_time = requested.work
        if requested.seconds is not None:  # the time that building the model took counts
            parameters.max_time_in_seconds = max(0.0, requested.seconds - (time.monotonic() - began))
        status = solver.solve(model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        again: dict[int, tuple[int, ...]] = {}
        for n, c in stage:
            if solver.boolean_value(active[n, c]):
                again[n] = tuple(sorted({*again.get(n, ()), solver.value(stage[n, c])}))
        return Answered(again, solver.value(over) if requested.phase == 1 else 0)

    def moment(self, t: Any, n: int) -> Any:
        """Return the moment of operation n in stage t, which is a number or a variable."""
        return t * (self.last + 1) + n

    def _intervals(self, model: Any) -> tuple[_Terms, _Terms, _Terms, _Terms]:
        begin: _Terms = {}
        end: _Terms = {}
        active: _Terms = {}
        stage: _Terms = {}
        horizon = self.moment(self.last, self.last)
        for n in range(self.last + 1):
            for c in range(self.copies if self.requested.again[n] else 1):
                if c == 0:
                    begin[n, c], active[n, c] = self.moment(n, n), True
                    end[n, c] = model.new_int_var(self.moment(n, n), horizon, f"end_{n}_{c}")
                    continue
                active[n, c] = model.new_bool_var(f"active_{n}_{c}")
                stage[n, c] = model.new_int_var(n + 1, self.last, f"stage_{n}_{c}")
                begin[n, c] = self.moment(stage[n, c], n)
                end[n, c] = model.new_int_var(0, horizon, f"end_{n}_{c}")
                model.add(end[n, c] >= begin[n, c])
                if c > 1:
                    model.add_implication(active[n, c], active[n, c - 1])
                    model.add(begin[n, c] > end[n, c - 1]).only_enforce_if(active[n, c])
                else:
                    model.add(begin[n, c] > end[n, 0]).only_enforce_if(active[n, c])
        for n, until in self.requested.until.items():  # results that must stay: the end of the last interval is fixed
            ends = [end[n, c] for c in range(self.copies) if (n, c) in end]
            model.add_max_equality(self.moment(until, until), ends)
        return begin, end, active, stage

    def _needs(self, model: Any, begin: _Terms, end: _Terms, active: _Terms) -> None:
        for (n, c), own in begin.items():
            for source in self.sources[n]:
                choices: list[Any] = []
                for k in range(self.copies):
                    if (source, k) not in begin:
                        continue
                    taken = model.new_bool_var(f"need_{n}_{c}_{source}_{k}")
                    model.add(begin[source, k] < own).only_enforce_if(taken)
                    model.add(end[source, k] >= own).only_enforce_if(taken)
                    if k:
                        model.add_implication(taken, active[source, k])
                    choices.append(taken)
                if c:
                    model.add_bool_or([*choices, active[n, c].negated()])
                else:
                    model.add_bool_or(choices)

    def _memory(self, model: Any, begin: _Terms, end: _Terms, active: _Terms) -> Any:
        requested, intervals, demands = self.requested, list[Any](), list[int]()
        for (n, c), first in begin.items():
            most = self.moment(self.last, self.last) + 1
            length = model.new_int_var(1, most, f"length_{n}_{c}")
            after = model.new_int_var(1, most, f"after_{n}_{c}")
            model.add(after == end[n, c] + 1)
            present = active[n, c] if c else True
            intervals.append(model.new_optional_interval_var(first, length, after, present, f"interval_{n}_{c}"))
            demands.append(requested.written[n])
            if requested.workspace[n]:
                intervals.append(model.new_optional_fixed_size_interval_var(first, 1, present, f"workspace_{n}_{c}"))
                demands.append(requested.workspace[n])
        for nbytes, first, last in requested.fixed:
            start, stop = self.moment(first, first), self.moment(last, last)
            intervals.append(model.new_fixed_size_interval_var(start, stop - start + 1, f"fixed_{start}_{stop}"))
            demands.append(nbytes)
        over = model.new_int_var(0, sum(demands) if requested.phase == 1 else 0, "over")
        model.add_cumulative(intervals, demands, requested.budget + over)
        return over


if __name__ == "__main__":
    main()
