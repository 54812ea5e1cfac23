"""How often a step must be passed through again: a bound for chains of layers of which few are kept.

If the loss takes nearly the whole budget, nearly all results of the forward are freed there. Of the values between
layers (the `spine`) a few are kept, K. Backward of a layer needs its arguments, so all layers from it down to the last
kept value run again. Values of that passage that are not kept until the backward of a lower layer are computed again
for it. So most layers run again twice. A relaxation of cuts (`cut_model`) misses this, because it keeps a fraction of
each value of the spine. Here these values are kept or not, as in the theory of chains of equal steps (A. Griewank, A.
Walther, Algorithm 799: Revolve, ACM Transactions on Mathematical Software 26, 2000), and the rest is relaxed.

Let k be the operation of the backward where most is live. In any schedule, K is the part of the spine that is in memory
while k runs. Take a link b (of the spine), and a cut l in the backward, among the readers of the link's storages or
after them. For its source, one of three cases holds:

1. It is in K.
2. It is not in K, and its producer does not run again between k and l. So the link's backward reads there only values
that the link has without its source.
3. It is not in K, and its producer runs again between k and l. The producer reads the source of the link below, for
which case 1 or 3 holds, and so on: all links down to some link a, whose source is in K (or which has none), compute
their outputs between k and l. Values that their backward reads after l are still in memory at l, within the memory that
is left there, or are computed again.

With a price p for memory at k and a price q for memory at l (Lagrangian relaxation: A. Geoffrion, Mathematical
Programming Study 2, 1974), the links depend on one another only through their outputs. A small linear program for each
link (`link_model`) gives its cost. A segment of links costs

    S(a, b, l) = max over q of  least sum over its links - q * (budget - forced[l])

Among several cuts, case 3 holds for all after the first recomputation of the producer, and case 2 for those before. So
either one cut is the first with case 3, or no cut is. Let F(b, m) be the least cost of the links below b where m bytes
of K are among them. Then

    F(b + 1, m) = min over the cases of  max of
        link b without its source + F(b, m),
        min over a of  max over l of  S(a, b, l) + p * bytes[source of a] + F(a, m - bytes[source of a])

The time of recomputations is at least F(all, free) - p * (budget - forced[k]), for every p. `forced` counts the bytes
that are live in any schedule. The rules of schedules are those of `cut_model`. Sizes of K are rounded down, so that few
numbers m are needed.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..base import Bound, Context, Request
from ..deadline import Deadline
from ..instance import StepInstance
from ..milp.highs import SOLVER
from ..problem import Problem
from .floor import arguments, forced_bytes
from .link_model import LinkModel, LinkQuery, Shape, shape_of
from .spine import SpineLink, spine

KEPT = (1.2, 2.0)  # prices of memory at k: times the time of the forward over the bytes of the spine
RESIDENT = tuple(0.01 * 1.6**n for n in range(11))  # prices at l
BELOW = (0, 1, 2)  # l is the operation where most is live in the backward of the link this many below the topmost one
PARTS = 48  # numbers that the bytes of K are rounded to
SCARCE = 3  # bytes of the spine over the free bytes: below, most of the spine is kept, and other bounds are stronger
INFINITE = float("inf")


class Cut(msgspec.Struct, frozen=True):
    """An operation of the backward.

    Attributes:
        at: The operation.
        room: Bytes that a segment's links may hold there.
    """

    at: int
    room: int


class LinkSegment(msgspec.Struct, frozen=True):
    """Links from `first` on.

    Attributes:
        first: The first link.
        cost: ns.
        bytes: Bytes of the kept source of the first link.
    """

    first: int
    cost: float
    bytes: int


def passes(instance: StepInstance, request: Request, context: Context) -> int:
    """Return the best bound over a few prices of memory at the worst moment of the backward."""
    base, links = instance.problem.baseline_time, spine(instance)
    scarce = sum(instance.problem.size[link.output] for link in links if link.output >= 0)
    bound = _Passes(instance, links, request.budget, context.deadline)
    if len(links) < 2 or scarce <= SCARCE * max(0, bound.free):
        return base
    typical = sum(instance.problem.time[f] for f in instance.problem.forward) / max(1, scarce)
    bounds = [bound.least(share * typical, typical) for share in KEPT]
    if context.deadline.stopped():
        return base
    return base + max(0, int(min(max(bounds), 1e18)))


class LinkWay(msgspec.Struct, frozen=True):
    """One case for a link. If there are segments, one of them holds.

    Attributes:
        alone: ns of the link, beside the cost of the links below it.
        segments: Segments that end with the link.
    """

    alone: float
    segments: tuple[LinkSegment, ...] = ()


class _Passes:
    """The bound under one budget.

    Attributes:
        first: The operation k.
        free: Bytes for K, without the storages that k reads.
        room: Bytes for everything that links hold at k.
        latest: By link, the last operation that reads its storages or those of a later link, at least k.
        earliest: By link, the first such operation from k on.
    """

    def __init__(self, instance: StepInstance, links: tuple[SpineLink, ...], budget: int, deadline: Deadline) -> None:
        self.instance, self.links, self.budget, self.deadline = instance, links, budget, deadline
        self.problem = problem = instance.problem
        self.forced = forced_bytes(problem)
        self.level = {i: int(self.forced[i]) + _bytes(problem, arguments(problem, i)) for i in problem.backward}
        self.first = max(problem.backward, key=lambda i: (self.level[i], -i))
        read = arguments(problem, self.first)
        self.read_there = frozenset(read)
        self.link_of = {s: n for n, link in enumerate(links) for s in link.storages}
        self.free = budget - int(self.forced[self.first]) - _bytes(problem, read)
        self.room = self.free + _bytes(problem, [s for s in read if s in self.link_of])
        last = [max((problem.readers[s][-1] for s in link.storages), default=0) for link in links]
        self.latest = [max(self.first, *last[n:]) for n in range(len(links))] + [self.first]
        late = [[i for s in link.storages for i in problem.readers[s] if i >= self.first] for link in links]
        self.earliest = [min(readers, default=len(problem.real)) for readers in late]

    def least(self, price: float, typical: float) -> float:
        """Return the least ns of recomputations.

        Args:
            price: ns for each byte at k.
            typical: ns for each byte that a passage computes.
        """
        count, unit = len(self.links), max(1, self.free) / PARTS
        best = np.full((count + 1, PARTS + 1), INFINITE)  # F(b, m)
        best[0] = 0.0
        for b in range(count):
            for way in self._ways(b, price, typical):
                cost_at = np.full(PARTS + 1, INFINITE)
                for segment in way.segments:
                    room = 0 if self.links[segment.first].source in self.read_there else segment.bytes
                    kept = int(room / unit)
                    if kept <= PARTS:
                        cost = segment.cost + best[segment.first][: PARTS + 1 - kept]
                        cost_at[kept:] = np.minimum(cost_at[kept:], cost)
                alone = way.alone + best[b]
                best[b + 1] = np.minimum(best[b + 1], np.maximum(cost_at, alone) if way.segments else alone)
            if self.deadline.stopped():
                return 0.0
        return float(best[count][PARTS]) - price * self.room

    def _ways(self, b: int, price: float, typical: float) -> list[LinkWay]:
        """Return all cases for link b and the links below it.

        Its source is in K, or is first computed again before one of the cuts, or after all of them.
        """
        link, cuts = self.links[b], self._cuts(b)
        available = self._cost(b, None, price, 0.0, LinkQuery(between=True, after=True), top=True)
        if link.source < 0:
            return [LinkWay(available)]
        kept = self.problem.size[link.source]
        without = LinkQuery(between=False, after=True)
        if not cuts:  # no statement about the links below is possible
            return [LinkWay(min(available, self._cost(b, None, price, 0.0, without, top=True)))]
        ways = [LinkWay(0.0, (LinkSegment(b, available + price * kept, kept),))]
        alone = [0.0, *(self._cost(b, cut, price, 0.0, without, top=True) for cut in cuts)]
        costs: dict[int, float] = {}
        for n in range(len(cuts), -1, -1):
            ways.append(LinkWay(alone[n], tuple(self._segment(a, cost, price) for a, cost in costs.items())))
            for share in RESIDENT if n else ():
                for a, cost in self._passed(b, cuts[n - 1], price, share * typical):
                    costs[a] = max(costs.get(a, 0.0), cost)
        return ways

    def _segment(self, a: int, cost: float, price: float) -> LinkSegment:
        source = self.links[a].source
        kept = self.problem.size[source] if source >= 0 else 0
        return LinkSegment(a, cost + price * kept, kept)

    def _passed(self, b: int, cut: Cut, price: float, held: float) -> list[tuple[int, float]]:
        """Return, for each link a below b, the least cost of the segment from a to b at this cut, with this price."""
        passed: list[tuple[int, float]] = []
        unused, used = (
            self._cost(b, cut, price, held, LinkQuery(between=True, after=after), top=True) for after in (False, True)
        )
        used = min(used, unused)
        for a in range(b - 1, -1, -1):
            below: list[float] = []
            for after in (False, True):
                costs = (
                    above
                    + self._cost(
                        a,
                        cut,
                        price,
                        held,
                        LinkQuery(between=True, after=after, output_between=True, output_after=after_too),
                    )
                    for after_too, above in ((False, unused), (True, used))
                )
                below.append(min(costs))
            unused, used = below[0], min(below)
            passed.append((a, used - held * cut.room))
            if self.links[a].source < 0:
                break
        return passed

    def _cuts(self, b: int) -> list[Cut]:
        """Return cuts in the backward of link b and of the links below it, ascending."""
        cuts: dict[int, Cut] = {}
        for below in BELOW:
            low, high = self.latest[b] if below else self.latest[b + 1], self.latest[max(0, b - below)]
            inside = [i for i in range(low + 1, high + 1) if i in self.level]
            if inside:
                at = max(inside, key=lambda i: (self.level[i], -i))
                other = [s for s in arguments(self.problem, at) if self.link_of.get(s, b + 1) > b]
                cuts[at] = Cut(at, self.budget - int(self.forced[at]) - _bytes(self.problem, other))
        return [cuts[at] for at in sorted(cuts)]

    def _cost(
        self, n: int, cut: Cut | None, price: float, held: float, requested: LinkQuery, *, top: bool = False
    ) -> float:
        """Return the cost of link n.

        Args:
            n: The link.
            cut: The cut l. Without one, everything that is read is read before it.
            price: ns per byte at k.
            held: ns per byte at l.
            requested: What the query assumes and demands.
            top: Whether the output of the link is free.
        """
        second = len(self.problem.real) if cut is None else cut.at
        if not top and self.earliest[n] > second:
            second = self.first  # everything is read after l, so the place of l does not matter
        return self.instance.view(_model, n, self.first, second, top=top).least(self.deadline, price, held, requested)


def _model(instance: StepInstance, n: int, first: int, second: int, top: bool) -> LinkModel:
    return instance.view(_of_shape, shape_of(instance.problem, spine(instance)[n], first, second, top=top))


def _of_shape(instance: StepInstance, shape: Shape) -> LinkModel:
    return LinkModel(shape)


def _bytes(problem: Problem, storages: list[int]) -> int:
    return sum(problem.size[s] for s in storages)


PASSES = Bound(
    "passes",
    "least number of passages through a chain of layers, if few of their values can be kept",
    passes,
    reference="A. Griewank and A. Walther, Revolve, 2000; Lagrangian relaxation of everything but the kept values",
    solver=SOLVER,
    needs=frozenset({"backward", "chain"}),
)
