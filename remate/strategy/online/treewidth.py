"""Recursion along a tree decomposition: little memory, whatever the time.

R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. Wang, "Efficient rematerialization for deep networks", NeurIPS 2019. A
graph of treewidth w has a set of at most w + 1 operations whose removal leaves parts of at most half its size; each
part has such a set again, and so on, log n deep. Work in a part needs only what the separators around it hold;
everything else is computed again from there, recursively: O(w log n) values at once. So storages off the path from the
whole to the current part are evicted first, the deepest of them before others; separators on the path stay as long as
they can. With memory to spare nothing is evicted.
"""

from __future__ import annotations

import heapq

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .replay import StepReplay, replayed


class Separators:
    """path[i]: parts that contain operation i, from the whole to the smallest. part[i]: the part that it separates."""

    def __init__(self, problem: Problem) -> None:
        self.path: dict[int, list[int]] = {}
        self.part: dict[int, int] = {}
        self.depth: list[int] = []
        bags, parent = decomposition(problem)
        self._split(bags, parent)

    def _split(self, bags: dict[int, set[int]], parent: dict[int, int | None]) -> None:
        around: dict[int, set[int]] = {b: set() for b in bags}
        for child, above in parent.items():
            if above is not None:
                around[child].add(above)
                around[above].add(child)
        left = [(component, list[int]()) for component in _components(around, set(bags))]
        while left:
            inside, above = left.pop()
            middle = _centroid(around, inside)
            number = len(self.depth)
            self.depth.append(len(above))
            path = [*above, number]
            for b in inside:
                self.path[b] = path
            for i in bags[middle]:
                self.part.setdefault(i, number)
            left += [(component, path) for component in _components(around, inside - {middle})]


def decomposition(problem: Problem) -> tuple[dict[int, set[int]], dict[int, int | None]]:
    """Bags of operations, each by the operation that is eliminated with it, and the bag above each: the order of least
    degree (H. Bodlaender, A. Koster, Treewidth computations I, 2010)."""
    near: dict[int, set[int]] = {i: set() for i, real in enumerate(problem.real) if real}
    for i in near:
        for s in problem.reads[i]:
            near[i].add(problem.producer[s])
            near[problem.producer[s]].add(i)
    bags: dict[int, set[int]] = {}
    queue = [(len(neighbours), i) for i, neighbours in near.items()]
    heapq.heapify(queue)
    while queue:
        degree, i = heapq.heappop(queue)
        if i not in near or degree != len(near[i]):
            continue
        around = near.pop(i)
        bags[i] = {i, *around}
        for j in around:
            near[j] |= around
            near[j] -= {i, j}
            heapq.heappush(queue, (len(near[j]), j))
    rank = {i: n for n, i in enumerate(bags)}
    return bags, {i: min((j for j in bag if j != i), key=rank.__getitem__, default=None) for i, bag in bags.items()}


def _components(around: dict[int, set[int]], inside: set[int]) -> list[set[int]]:
    left, components = set(inside), list[set[int]]()
    for root in sorted(inside):
        if root not in left:
            continue
        left.discard(root)
        component, wanted = {root}, [root]
        while wanted:
            following = around[wanted.pop()] & left
            left -= following
            component |= following
            wanted += following
        components.append(component)
    return components


def _centroid(around: dict[int, set[int]], inside: set[int]) -> int:
    """The vertex of a tree without which no part has more than half of it."""
    root = min(inside)
    order, above = [root], {root: root}
    for i in order:
        for j in sorted(around[i] & inside):
            if j not in above:
                above[j] = i
                order.append(j)
    weight = dict.fromkeys(inside, 1)
    largest = dict.fromkeys(inside, 0)
    for i in reversed(order):
        largest[i] = max(largest[i], len(inside) - weight[i])
        if i != root:
            weight[above[i]] += weight[i]
            largest[above[i]] = max(largest[above[i]], weight[i])
    return min(order, key=lambda i: largest[i])


class Path:
    """Memory in which separators on the path to the part at work go last."""

    def __init__(self, separators: Separators) -> None:
        self.separators = separators

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Evict storages, by their parts, until these sizes fit."""
        problem, needed = replay.problem, sum(sizes.values())
        excess = replay.held + needed - replay.budget
        if excess <= 0:
            return True
        producer = next((problem.producer[s] for s in sizes if s >= 0), replay.point)
        path = {part for i in (replay.point, producer) for part in self.separators.path[i]}
        free = [s for s in replay.there if problem.size[s] and replay.may_go(s)]
        for _, s in sorted((self._rank(problem.producer[s], path), s) for s in free):
            if excess <= 0:
                break
            excess -= problem.size[s]
            replay.evict(s)
        return excess <= 0

    def gone(self, s: int) -> None:
        """Bytes are counted by the replay."""

    def _rank(self, i: int, path: set[int]) -> tuple[bool, int]:
        part = self.separators.part[i]
        return part in path, -self.separators.depth[part]


def treewidth(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """The replay along separators."""
    separators = instance.view(separators_of)
    yield from replayed(instance, request, context, lambda budget: Path(separators))


def separators_of(instance: StepInstance) -> Separators:
    """The recursion of a step."""
    return Separators(instance.problem)


TREEWIDTH = Strategy(
    "treewidth",
    "recursion along a tree decomposition: small peaks, whatever the time",
    treewidth,
    reference="R. Kumar et al., Efficient rematerialization for deep networks, NeurIPS 2019",
)
