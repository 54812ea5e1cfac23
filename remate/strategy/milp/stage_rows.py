"""Rows that all programs with a stage for every operation share: `every_stage` and POET's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..problem import Problem
from .horizon import Horizon


class StageTerms(Protocol):
    """Variables by their keys, as in `every_stage`. Keys without a variable are absent."""

    @property
    def run(self) -> Mapping[tuple[int, int], Any]: ...
    @property
    def hold(self) -> Mapping[tuple[int, int], Any]: ...
    @property
    def free(self) -> Mapping[tuple[int, int, int], Any]: ...


class StageRows(NamedTuple):
    """The keys and rows of a step.

    Attributes:
        problem: The step.
        about: Last uses of its operations and storages.
        number: Number of each executed operation, by its index in the graph.
        maker: By storage, the number of its producer.
    """

    problem: Problem
    about: Horizon
    number: Mapping[int, int]
    maker: Mapping[int, int]

    def run_keys(self) -> list[tuple[int, int]]:
        """Return the keys of runs after the first ones."""
        about, end = self.about, len(self.about.operations)
        return sorted(
            (t, n) for n, last in enumerate(about.last) if about.again[n] for t in range(n + 1, min(last, end - 1) + 1)
        )

    def stages(self, s: int) -> range:
        """Return the stages at whose beginning storage s may be resident."""
        return range(self.maker[s] + 1, min(self.about.until[s], len(self.about.operations)) + 1)

    def uses(self, s: int) -> list[int]:
        """Return the operations that write or read storage s."""
        return sorted({self.maker[s], *(self.number[i] for i in self.problem.readers[s])})

    def may_run(self, t: int, n: int) -> bool:
        """Return whether operation n can run in stage t."""
        return t == n or (self.about.again[n] and n < t <= self.about.last[n])

    def free_keys(self) -> Iterator[tuple[int, int, int]]:
        """Yield the keys of frees."""
        for s, maker in self.maker.items():
            uses = self.uses(s)
            for t in range(maker, min(self.about.until[s], len(self.about.operations) - 1) + 1):
                yield from ((t, s, k) for k in uses if k <= t and self.may_run(t, k))

    def hold_pinned(self, m: StageTerms) -> None:
        """Hold pinned storages from their stage on."""
        for s, first in self.about.pinned.items():
            last = self.about.until[s] if s in self.problem.pinned else first
            for t in range(max(first, self.maker[s] + 1), last + 1):
                if (t, s) in m.hold:
                    m.hold[t, s].setlb(1)

    def run(self, m: StageTerms, t: int, n: int) -> Any:
        """Return whether operation n runs in stage t: 1, a variable, or None for never."""
        return 1 if t == n else m.run.get((t, n))

    def available(self, m: StageTerms, t: int, s: int) -> list[Any]:
        """Return terms that make storage s available in stage t, after its producer's turn."""
        run = self.run(m, t, self.maker[s])
        return [term for term in (run, m.hold.get((t, s))) if term is not None]

    def needs(self, m: StageTerms, t: int, n: int) -> Iterator[Any]:
        """Yield rows: an operation runs only where everything that it reads is available."""
        for s in self.problem.reads[self.about.operations[n]]:
            yield sum(self.available(m, t, s)) >= self.run(m, t, n)

    def deaths(self, m: StageTerms, t: int, s: int, uses: Sequence[int], back: Any = 0) -> Iterator[Any]:
        """Yield rows of the frees of storage s in stage t.

        Args:
            m: The variables.
            t: The stage.
            s: The storage.
            uses: Operations of the stage that write or read it.
            back: Variable of its return from storage, which is after all frees; 0 if there is none.
        """
        available = self.available(m, t, s)
        later = m.hold.get((t + 1, s), 0)
        if not isinstance(later, int) and self.maker[s] != t:
            yield later <= sum(available) + back
        if len(available) == 2:
            yield sum(available) <= 1
        frees = [m.free[t, s, k] for k in uses]
        if not frees:
            return
        yield sum(frees) + later <= sum(available) + back
        if not isinstance(back, int):
            yield sum(frees) <= sum(available)
        for at, k in enumerate(uses):
            run = self.run(m, t, k)
            if not isinstance(run, int):
                yield frees[at] <= run
            for after in uses[at + 1 :]:
                yield frees[at] + self.run(m, t, after) <= 1
