"""The recomputations within one link of a spine (`spine`), as a linear program for the bound of `passes`.

Take two cuts k and l, operations of the backward. After each of them, every storage that is read is in memory or
computed again (`cut_model`). Every byte in memory at a cut has a price. The model is

    minimise  sum of time[f] * (recompute[f, k, l] + recompute[f, l, end])
            + sum of bytes[s] * (price_k * hold[s, k] + price_l * hold[s, l])

over the operations and storages of the link alone. Storages of other links are free, except for the source of the link:
a query says whether the source is available between the cuts, and after them. A query may demand the link's output for
the next link at either place. The relaxation of the model is solved. Equal links at different places of a step share a
model.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec
import numpy as np

from remate_runtime.support.gc_pause import gc_paused

from ..deadline import Deadline
from ..milp.formulation import linear
from ..milp.highs import HighsModel, SolveOptions
from ..problem import Problem
from ..pyomo_api import Model, pyo
from .floor import arguments
from .spine import SpineLink

SAFE = 1 - 1e-7  # factor on the value of a relaxation, for rounding
SCALE = 1e3  # ns in one unit of the model


class LinkQuery(msgspec.Struct, frozen=True):
    """What a query assumes and demands.

    Attributes:
        between: The link's source is available between the cuts.
        after: The link's source is available after the second cut.
        output_between: The link must have computed its output between the cuts.
        output_after: The link must have computed its output after the second cut.
    """

    between: bool
    after: bool
    output_between: bool = False
    output_after: bool = False


class Shape(msgspec.Struct, frozen=True):
    """Everything that the model of a link depends on.

    Attributes:
        operations: For each operation its ns, whether it runs only once, and numbers of storages that it reads (or
            SOURCE) and writes.
        storages: For each storage its bytes, whether it is read between the cuts, whether it is read after them, and
            whether the operation of the first and of the second cut reads it.
        output: Number of the storage that the next link reads, or -1.
    """

    operations: tuple[tuple[int, bool, tuple[int, ...], tuple[int, ...]], ...]
    storages: tuple[tuple[int, bool, bool, bool, bool], ...]
    output: int


SOURCE = -1


def shape_of(problem: Problem, link: SpineLink, first: int, second: int, *, top: bool) -> Shape:
    """Return the shape of a link between two cuts.

    Args:
        problem: The step.
        link: The link.
        first: Operation of the first cut.
        second: Operation of the second cut, or the end of the step if there is none.
        top: Whether the output of the link is free.
    """
    storages = [s for s in link.storages if not (top and s == link.output)]
    number = {s: n for n, s in enumerate(storages)}
    if link.source >= 0:
        number[link.source] = SOURCE
    at = [frozenset(arguments(problem, k)) if k < len(problem.real) else frozenset[int]() for k in (first, second)]

    def about(s: int) -> tuple[int, bool, bool, bool, bool]:
        readers = problem.readers[s]
        n, after = bisect_right(readers, first), bisect_right(readers, second)
        between = n < len(readers) and readers[n] < second
        return problem.size[s], between, after < len(readers), s in at[0], s in at[1]

    operations = tuple(
        (
            problem.time[f],
            f in problem.once,
            tuple(number[u] for u in problem.reads[f] if u in number),
            tuple(number[s] for s in problem.writes[f] if s in number),
        )
        for f in link.operations
    )
    return Shape(operations, tuple(map(about, storages)), number.get(link.output, -1))


class LinkModel:
    """The model of a shape, with cached results."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        with gc_paused():
            self.model: Any = self._build()
            self.engine = HighsModel(self.model)
        column, m = self.engine.column, self.model
        self._time, self._first, self._second = (np.zeros(len(self.engine.cost)) for _ in range(3))
        for (f, _), variable in m.recompute.items():
            self._time[column(variable)] = shape.operations[f][0]
        for (s, c), variable in m.hold.items():
            (self._second if c else self._first)[column(variable)] = shape.storages[s][0]
        self._requested = self.engine.columns(m.requested.values())
        self._known: dict[tuple[float, float, LinkQuery], float] = {}

    def least(self, deadline: Deadline, first: float, second: float, requested: LinkQuery) -> float:
        """Return the least cost in ns; infinite if the query is infeasible.

        Args:
            deadline: Ends the solve early.
            first: Price in ns per byte at the first cut.
            second: Price in ns per byte at the second cut.
            requested: The query.
        """
        key = first, second, requested
        if key not in self._known:
            bits = np.array(msgspec.structs.astuple(requested), dtype=float)
            self.engine.set_cost((self._time + first * self._first + second * self._second) / SCALE)
            self.engine.set_bounds(self._requested, bits, bits)
            result = self.engine.solve(deadline, SolveOptions(stage="layer", relax=True))
            value = max(0.0, result.bound * SCALE * SAFE) if result.status != "infeasible" else float("inf")
            if deadline.stopped():
                return 0.0
            self._known[key] = value
        return self._known[key]

    def _build(self) -> Model:
        shape = self.shape
        m: Any = pyo.ConcreteModel()
        operations, storages = range(len(shape.operations)), range(len(shape.storages))
        producer = {s: f for f in operations for s in shape.operations[f][3]}

        def held(m: Any, s: int, c: int) -> tuple[int, int]:
            if s == shape.output and c == 0:  # the caller decides whether it is kept; this model does not keep it
                return 0, 0
            return int(shape.storages[s][3 + c]), 1

        def again(m: Any, f: int, c: int) -> tuple[int, int]:
            return 0, int(not shape.operations[f][1])

        m.hold = pyo.Var(storages, (0, 1), bounds=held)
        m.recompute = pyo.Var(operations, (0, 1), bounds=again)
        m.requested = pyo.Var(range(4), bounds=(0, 1))  # as the fields of LinkQuery
        m.rows = pyo.ConstraintList()

        def available(s: int, c: int) -> list[Any]:
            return [m.requested[c]] if s == SOURCE else [m.hold[s, c], m.recompute[producer[s], c]]

        def at_least(variables: list[Any], less: Any, least: float) -> None:
            given = [1.0] * len(variables) + [-1.0] * (less is not None)
            m.rows.add(linear([*variables, *([less] if less is not None else [])], given) >= least)

        for s in storages:
            for c in (0, 1):
                if shape.storages[s][1 + c]:
                    at_least(available(s, c), None, 1.0)
            at_least(available(s, 0), m.hold[s, 1], 0.0)
        for f in operations:
            for u in shape.operations[f][2]:
                for c in (0, 1):
                    at_least(available(u, c), m.recompute[f, c], 0.0)
        if shape.output >= 0:
            at_least(available(shape.output, 0), m.requested[2], 0.0)
            at_least(available(shape.output, 1), m.requested[3], 0.0)
        every = [*m.hold.values(), *m.recompute.values(), *m.requested.values()]
        m.all = pyo.Objective(expr=linear(every, [1.0] * len(every)))
        return m
