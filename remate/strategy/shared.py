"""What solves of one step under several budgets share: the problem, models built once, and every schedule worth having.

A schedule found for one budget fits every larger one, so a sweep of budgets never pays more for more memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from remate_runtime.step import FlatRerun, Graph

from ..partition.hierarchy import BlockSpan, Hierarchy
from .blocks.block_frontier import BlockPlan
from .blocks.block_selection import BlockSelection
from .bound.cuts import CutModel
from .bound.floor import proven_floor
from .chain import Chain
from .milp.budget_search import Attempt, Candidate, judge
from .milp.highs import Control
from .milp.windows import RerunWindows
from .problem import Problem


class Shared:
    """State of a step that outlives one budget. graph: with costs. hierarchy: its blocks, if it has any."""

    def __init__(self, graph: Graph, hierarchy: Hierarchy | None = None) -> None:
        self.problem = Problem(graph)
        self.parts: tuple[BlockSpan, ...] = hierarchy.parts if hierarchy is not None else ()
        self.leaves = [leaf for part in self.parts for leaf in part.leaves()]
        self.baseline = judge(self.problem, (), "keep-all", "optimal")
        self.known: list[Candidate] = [self.baseline]  # none slower and larger than another, largest first
        self.floor = proven_floor(self.problem)
        self.menu: tuple[tuple[FlatRerun, ...], ...] = ()  # plans of repeated blocks, each over one instance
        self.squeezed = False  # the smallest peak has been searched for
        self.interrupted = False  # by Ctrl-C
        self._attempts: dict[str, Attempt] = {}
        self._levels: BlockSelection | None = None

    def keep(self, found: Candidate) -> None:
        """Remember a schedule, unless one is known that is no slower and no larger."""
        if any(c.peak <= found.peak and c.time <= found.time for c in self.known):
            return
        rest = [c for c in self.known if c.peak < found.peak or c.time < found.time]
        self.known = sorted([*rest, found], key=lambda c: -c.peak)

    def best(self, budget: int) -> Candidate | None:
        """The fastest schedule known that fits `budget` bytes."""
        return min((c for c in self.known if c.peak <= budget), key=lambda c: (c.time, c.peak), default=None)

    @cached_property
    def cuts(self) -> CutModel:
        return CutModel(self.problem, 1, self.baseline.peak)

    @cached_property
    def chain(self) -> Chain:
        return Chain(self.problem, self.parts)

    def levels(self, control: Control) -> BlockSelection:
        if self._levels is not None:
            return self._levels
        made = BlockSelection(self.problem, self.leaves, control)
        if not control.stopped():  # else its frontiers may lack plans
            self._levels = made
        return made

    def plans(self, control: Control) -> dict[int, list[BlockPlan]]:
        """Plans of the stages of the chain: those of the leaves, where a stage is one."""
        levels, leaf = self.levels(control), {part.forward: p for p, part in enumerate(self.leaves)}
        stages = enumerate(self.chain.stages)
        return {k: levels.plans(leaf[stage.forward]) for k, stage in stages if stage.forward in leaf}

    def attempt(self, name: str, windows: Callable[[], RerunWindows]) -> Attempt:
        """The formulation called `name`, over `windows` when it has to be built."""
        if name not in self._attempts:
            self._attempts[name] = Attempt(self.problem, windows(), self.baseline.peak, name)
        return self._attempts[name]
