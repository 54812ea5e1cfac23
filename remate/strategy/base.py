"""The contract of strategies and bounds.

A strategy is a generator. It yields a `Proposal` and receives the simulator's `Candidate` for it. It may use that to
correct its next proposal. It never judges its own work, never decides what is kept, and is closed as soon as the result
is good enough.
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
# Keys of `StepInstance.kept`.
# (PARTS, strategy, effort, solvers): a function from recomputations to their tree of parts.
PARTS = "parts"
MENU = "menu"  # (MENU, effort): plans of repeated blocks that a file may offer
Need = Literal["backward", "forward", "hierarchy", "chain", "order"]
Returned = TypeVar("Returned")


class Request(msgspec.Struct, frozen=True):
    """What a search shall find.

    Attributes:
        budget: Bytes.
        gap: Accepted difference to a proven bound, as a share of the baseline's time.
        effort: How hard to search.
        solvers: Solvers that the user chose, for strategies with a choice.
    """

    budget: int
    gap: float = 0.002
    effort: Effort = NORMAL
    solvers: Solvers = DEFAULT


class Candidate(msgspec.Struct, frozen=True):
    """A schedule with the simulator's figures.

    Attributes:
        recomputes: Its recomputations.
        peak: Bytes.
        time: ns.
        strategy: The strategy that proposed it; "a+b" if b improved on a.
        solver: The solver that it came from, or "none".
        order: Order of first executions, by operations of the step, if it differs from the step's own order.
            `recomputes` then counts positions in it.
    """

    recomputes: tuple[FlatRecompute, ...]
    peak: int
    time: int
    strategy: str
    solver: str = NO_SOLVER
    order: tuple[int, ...] | None = None


class Proposal(msgspec.Struct, frozen=True):
    """A schedule that a strategy proposes.

    Attributes:
        recomputes: In step order.
        start: The candidate that it improves on, if another strategy proposed that.
        order: Order of first executions, as in a candidate; by default that of `start`, or the step's own.
    """

    recomputes: tuple[FlatRecompute, ...]
    start: Candidate | None = None
    order: tuple[int, ...] | None = None


class Context:
    """What a strategy knows while it works.

    Attributes:
        deadline: Strategies call its `stopped()` often.
        bound: Proven ns for this budget. A strategy that proves more raises it.
        slack: ns above the bound that are close enough.
        best: The fastest known schedule that fits.
        floor: Proven bytes that the peak of every schedule reaches, whatever the budget. A complete search raises it.
        fitted: Names of strategies that have proposed a schedule that fits.
    """

    def __init__(
        self, deadline: Deadline, bound: int, slack: int = 0, best: Candidate | None = None, floor: int = 0
    ) -> None:
        self.deadline, self.bound, self.slack, self.best, self.floor = deadline, bound, slack, best, floor
        self.fitted: set[str] = set()

    @property
    def enough(self) -> int:
        """Return a time in ns that is good enough."""
        return self.bound + self.slack


Proposals = Generator[Proposal, Candidate, Returned]


class Strategy(msgspec.Struct, frozen=True):
    """A method that finds recomputations.

    Attributes:
        name: The name in requests and files.
        summary: What it does, in one line.
        propose: Yields proposals. Those over the budget count for the smallest peak that the strategy reaches. The same
            instance, request and best known schedule must give the same proposals. Its docstring has the sections
            "Source", "From the paper" and "Differences", which the documentation shows.
        reference: The paper, or "".
        solver: Name of the solver that `propose` uses, or "none".
        needs: What an instance must have: "backward" operations, "forward" operations only, a "hierarchy" of blocks, a
            "chain" of more than one stage, or an "order" that may be changed.
        reorders: Whether it changes the order. Bounds for the step's own order do not hold for its results.
        options: Options of `Request.solvers` that it uses.
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
    """A method that proves that no schedule within a budget is faster.

    Attributes:
        name: The name in policies.
        summary: What it does, in one line.
        prove: Returns a time in ns.
        reference: The paper, or "".
        solver: Name of the solver that `prove` uses, or "none".
        needs: As for a strategy.
    """

    name: str
    summary: str
    prove: Callable[[StepInstance, Request, Context], int]
    reference: str = ""
    solver: str = NO_SOLVER
    needs: frozenset[Need] = frozenset()
