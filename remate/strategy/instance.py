"""A step to be planned, with everything that is derived from it alone, cached for further budgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import link, simulate

from ..partition.hierarchy import BlockSpan
from .base import BASELINE, Candidate
from .bound.floor import floor_and_holder, least_need, proven_floor
from .problem import Problem
from .sharded import guaranteed, with_workspaces

FORBIDDEN = 1 << 62  # bytes
View = TypeVar("View")
Key = ParamSpec("Key")


class StepInstance:
    """One step.

    Attributes:
        judge: The step that plans are judged on, with costs.
        graph: The step for strategies. It differs if FSDP2 shards the parameters: their memory counts as workspace.
        blocks: Its hierarchy, if it has any: outermost blocks in forward order.
        once: Forward operations that may not run again.
        orderable: Whether first executions may take place in any order that the reads allow.
        end: The operation that is last in any order, if any.
        kept: Cache of strategies and bounds, by keys of their own.
    """

    def __init__(
        self,
        graph: Graph,
        blocks: Sequence[BlockSpan] = (),
        once: Collection[int] = (),
        orderable: bool = False,
        end: int | None = None,
    ) -> None:
        leaves = tuple(leaf for block in blocks for leaf in block.leaves())
        self.judge, self.graph = graph, with_workspaces(graph, leaves)
        self.blocks, self.once, self.orderable, self.end = tuple(blocks), frozenset(once), orderable, end
        self.kept: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def problem(self) -> Problem:
        """Return the step at the level of storages."""
        return Problem(self.graph, self.once, self.end)

    @cached_property
    def provable(self) -> StepInstance:
        """Return this step for bounds: with the memory of sharded parameters that every schedule uses."""
        if self.judge.sharded is None:
            return self
        return StepInstance(guaranteed(self.judge), self.blocks, self.once, self.orderable, self.end)

    @cached_property
    def leaves(self) -> tuple[BlockSpan, ...]:
        """Return the innermost blocks, in forward order."""
        return tuple(leaf for block in self.blocks for leaf in block.leaves())

    @cached_property
    def baseline(self) -> Candidate:
        """Return the schedule without recomputation, which keeps everything."""
        return self.judged((), BASELINE)

    @cached_property
    def floor(self) -> int:
        """Return bytes that the peak of every schedule reaches at least."""
        return proven_floor(self.provable.problem)

    @cached_property
    def floor_holder(self) -> str:
        """Return the operation that needs the floor, as text; "" if there is none."""
        at = floor_and_holder(self.provable.problem)[1]
        return "" if at < 0 else f"{self.judge.operations[at].id} ({self.judge.operations[at].op})"

    @cached_property
    def floor_of_delivered(self) -> int | None:
        """Return the floor if gradients were freed at their delivery; None if they already are."""
        if self.judge.delivered != "retained" or self.judge.sharded is not None:
            return None
        return proven_floor(Problem(replace(self.graph, delivered="accumulated"), self.once))

    @cached_property
    def least_need(self) -> int:
        """Return bytes that some operation needs alone, so the peak of every schedule in any order reaches them."""
        return least_need(self.provable.problem)

    def ordered(self, order: tuple[int, ...]) -> StepInstance:
        """Return this step with its operations in another order, as one forward without a hierarchy."""
        return self.view(_ordered, order)

    @property
    def has_backward(self) -> bool:
        return self.graph.backward_start < len(self.graph.operations)

    def judged(self, recomputes: Sequence[FlatRecompute], strategy: str, solver: str = "none") -> Candidate:
        """Return recomputations with the simulator's peak and time. If they are not allowed, the peak is over every
        budget."""
        misplaced = self.end is not None and self.end != len(self.graph.operations) - 1
        if misplaced or (self.once and any(recompute.op in self.once for recompute in recomputes)):
            return Candidate(tuple(recomputes), FORBIDDEN, self.baseline.time, strategy, solver)
        timeline = simulate(link(self.judge, recomputes))
        return Candidate(tuple(recomputes), timeline.peak, timeline.time, strategy, solver)

    def view(
        self, build: Callable[Concatenate[StepInstance, Key], View], *key: Key.args, **options: Key.kwargs
    ) -> View:
        """Return `build(instance, *key)`, cached by `build`, `key` and `options`, which must be hashable."""
        at: tuple[Hashable, ...] = (build, *key, *sorted(options.items()))
        if at not in self.kept:
            self.kept[at] = build(self, *key, **options)
        return self.kept[at]


def _ordered(instance: StepInstance, order: tuple[int, ...]) -> StepInstance:
    graph, position = instance.graph, {i: n for n, i in enumerate(order)}
    values = tuple(v if v.producer < 0 else replace(v, producer=position[v.producer]) for v in graph.values)
    operations = tuple(graph.operations[i] for i in order)
    moved = replace(graph, values=values, operations=operations)
    end = None if instance.end is None else position[instance.end]
    return StepInstance(moved, (), [position[i] for i in instance.once], True, end)
