"""How hard to search, in counts that are equal on every machine (nodes, iterations, rounds, visits), never in
seconds."""

from __future__ import annotations

import msgspec
from msgspec import structs
from msgspec.structs import replace

from ..errors import UnknownNameError


class Effort(msgspec.Struct, frozen=True):
    """Limits of a search.

    Attributes:
        name: Its name in requests.
        nodes: Nodes of branch and bound in one solve of a model of a step, a block or a bound.
        selection_nodes: The same for the choice among plans of blocks.
        work: Rows times iterations of one solve (see `milp.highs`), so that a large model gets fewer iterations.
        rounds: Rounds of the feedback between a model and the simulator.
        prices: Solves of one block under one limit on its peak.
        cuts: Operations where a bound is tried.
        recreations: Rounds of ruin and recreate on a step of up to 300 forward operations.
        visits: Work of one greedy search or annealing, in visits of about 0.25 µs. Every strategy and bound may spend
            twice as many, or eight times as many while no schedule is near the bound (`Deadline.limited`).
        states: States of a step that one search visits.
        close: If a schedule fits that is proven this close to the fastest (as a share of the step's time), a step of
            more than a few dozen operations gets no models of many stages. They take tens of seconds there, and gain
            some tenths of a percent.
        enough: Visits of a search, from the first schedule that fits, after which it ends if the best schedule is
            proven to be within `PAYS` of the fastest. For steps of up to `USUAL` operations, and in proportion for
            larger ones.
        most: The same for a schedule without such a proof.
    """

    name: str
    nodes: int
    selection_nodes: int
    work: float
    rounds: int
    prices: int
    cuts: int
    recreations: int
    visits: float
    states: int
    close: float
    enough: float = float("inf")
    most: float = float("inf")

    def allowed(self, operations: int, gap: float) -> float:
        """Return the visits that a search may spend once a schedule fits.

        Args:
            operations: Operations of the step, without views.
            gap: Gap of the best schedule, as a share of the step's time.
        """
        return max(1.0, operations / USUAL) * (self.enough if gap <= PAYS else self.most)


USUAL = 545  # operations without views up to which `enough` and `most` are not scaled
PAYS = 0.01  # share of the step's time: a smaller gap is worth no more visits than `Effort.enough`
QUICK = Effort("quick", 20, 100, 2e7, 4, 8, 12, 20, 1e7, 1_500, 1.0, 2.5e6, 6e6)
NORMAL = Effort("normal", 60, 400, 2e8, 6, 14, 24, 120, 6e7, 20_000, 0.03, 5e6, 2.5e7)
THOROUGH = Effort("thorough", 600, 4000, 4e9, 10, 24, 60, 1500, 6e8, 200_000, 0.0)
EFFORTS = {effort.name: effort for effort in (QUICK, NORMAL, THOROUGH)}


def effort_named(name: str) -> Effort:
    """Return the effort of this name. Raises UnknownNameError."""
    if name not in EFFORTS:
        raise UnknownNameError(f"there is no effort {name[:80]!r}\n  hint: one of {', '.join(EFFORTS)}")
    return EFFORTS[name]


def part_of(effort: Effort, share: float) -> Effort:
    """Return the effort with a share of its local search."""
    return replace(effort, recreations=int(share * effort.recreations), visits=share * effort.visits)


def shared_effort(effort: Effort, among: int) -> Effort:
    """Return the effort of each of several searches, so that together they take no more than this effort.

    Args:
        effort: The whole effort.
        among: Number of searches.
    """
    counts = {name: max(1, value // among) for name, value in structs.asdict(effort).items() if isinstance(value, int)}
    return replace(
        effort,
        **counts,
        work=effort.work / among,
        visits=effort.visits / among,
        enough=effort.enough / among,
        most=effort.most / among,
    )
