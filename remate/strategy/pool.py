"""The best known schedules. A schedule that fits a budget fits every larger one, so a sweep gets no worse with more
memory."""

from __future__ import annotations

from collections.abc import Collection

from .base import Candidate


class CandidatePool:
    """Candidates of one step of which none is both slower and larger than another, the largest first.

    Attributes:
        candidates: The candidates.
        interrupted: Whether Ctrl-C ended a search that added to this pool.
    """

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.interrupted = False

    def keep(self, candidate: Candidate) -> None:
        """Add a candidate, unless a known one is no slower and no larger."""
        if any(c.peak <= candidate.peak and c.time <= candidate.time for c in self.candidates):
            return
        rest = [c for c in self.candidates if c.peak < candidate.peak or c.time < candidate.time]
        self.candidates = sorted([*rest, candidate], key=lambda c: -c.peak)

    def best(self, budget: int, of: Collection[str] | None = None, reordered: bool = False) -> Candidate | None:
        """Return the fastest candidate within a budget.

        Args:
            budget: Bytes.
            of: Only candidates of these strategies.
            reordered: Whether first executions may have a different order than the step's.
        """
        known = (c for c in self.candidates if c.peak <= budget and made_by(c, of) and (reordered or c.order is None))
        return min(known, key=lambda c: (c.time, c.peak), default=None)

    @property
    def smallest(self) -> int:
        """Return the least peak, in bytes."""
        return self.candidates[-1].peak


def made_by(candidate: Candidate, names: Collection[str] | None) -> bool:
    """Return whether only these strategies took part in a candidate (None: any)."""
    return names is None or all(part in names for part in candidate.strategy.split("+"))


def better(a: Candidate | None, b: Candidate | None) -> Candidate | None:
    """Return the faster of two candidates; of equally fast ones, the smaller."""
    if a is None or b is None:
        return a or b
    return b if (b.time, b.peak) < (a.time, a.peak) else a
