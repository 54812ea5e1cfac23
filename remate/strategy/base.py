"""The contract: a `Request` is answered by a `Strategy` or a `Bound`, and a `Candidate` says what an answer is worth.

A strategy is a generator. It yields a `Proposal` and receives the simulator's `Candidate` for it; it may ignore that,
or correct itself and go on. It never judges its own work, never decides what is kept, and is closed as soon as the
result is good enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from remate_runtime.flat_step import FlatRecompute

from .deadline import Deadline
from .effort import NORMAL, Effort
from .solver_choice import DEFAULT, Option, Solvers

if TYPE_CHECKING:
    from .instance import StepInstance

BASELINE = "baseline"  # strategy of the schedule without recomputation
NO_SOLVER = "none"
# With a strategy, effort and solvers: a function from recomputations to the tree of parts that they came from.
PARTS = "parts"
MENU = "menu"  # with the effort, where an instance keeps plans of repeated blocks that a file may offer
Need = Literal["backward", "forward", "hierarchy", "chain", "order"]
Returned = TypeVar("Returned")


class Request(msgspec.Struct, frozen=True):
    """budget: bytes. gap: accepted difference, as (time - proven bound) / time of the baseline. effort: how hard to
    search. solvers: for strategies that leave the choice to the user."""

    budget: int
    gap: float = 0.002
    effort: Effort = NORMAL
    solvers: Solvers = DEFAULT


class Candidate(msgspec.Struct, frozen=True):
    """A schedule as the simulator judges it.

    peak: bytes. time: ns. strategy: its author; "a+b" where b improved on a. solver: the solver that it came from, or
    "none". order: of first executions, by operations of the step, if it differs from the step's own; recomputations
    then count positions in it.
    """

    recomputes: tuple[FlatRecompute, ...]
    peak: int
    time: int
    strategy: str
    solver: str = NO_SOLVER
    order: tuple[int, ...] | None = None


class Proposal(msgspec.Struct, frozen=True):
    """recomputations: in step order. start: the candidate that they improve on, if it is from a different strategy.
    order: of first executions, as in a candidate; by default that of `start`, or the step's own."""

    recomputes: tuple[FlatRecompute, ...]
    start: Candidate | None = None
    order: tuple[int, ...] | None = None


class Context:
    """What a strategy may look at while it works. deadline: ask `stopped()` now and then. bound: ns, proven for this
    budget. slack: ns above the bound that are close enough. best: the fastest schedule known that fits. fitted: names
    of the strategies that found something that fits."""

    def __init__(self, deadline: Deadline, bound: int, slack: int = 0, best: Candidate | None = None) -> None:
        self.deadline, self.bound, self.slack, self.best = deadline, bound, slack, best
        self.fitted: set[str] = set()

    @property
    def enough(self) -> int:
        """A time in ns that is good enough."""
        return self.bound + self.slack


Proposals = Generator[Proposal, Candidate, Returned]


class Strategy(msgspec.Struct, frozen=True):
    """One way to find recomputations.

    name: as it is requested and written down. summary: what it does, in one line. reference: the paper, or "". solver:
    "none", or the name of the solver that `propose` uses. needs: what an instance must have: "backward" operations, or
    "forward" ones alone, a "hierarchy" of blocks, a "chain" of more than one stage, an "order" that may be changed.
    reorders: it changes the order, so bounds for the step's own order do not hold for its results. options: solvers
    that a user can choose, `Request.solvers`. propose: yields
    proposals; those over the budget count for the smallest peak that the strategy reaches. The same instance, request
    and best known schedule must give the same proposals.
    """

    name: str
    summary: str
    propose: Callable[[StepInstance, Request, Context], Proposals[object]]
    reference: str = ""
    solver: str = NO_SOLVER
    needs: frozenset[Need] = frozenset()
    reorders: bool = False
    options: frozenset[Option] = frozenset()


class Bound(msgspec.Struct, frozen=True):
    """One way to prove that no schedule within a budget is faster. prove: a time in ns. The other fields as those of a
    strategy."""

    name: str
    summary: str
    prove: Callable[[StepInstance, Request, Context], int]
    reference: str = ""
    solver: str = NO_SOLVER
    needs: frozenset[Need] = frozenset()
