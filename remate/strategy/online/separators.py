"""A step cut into halves again and again, by bags of a tree decomposition of its operations."""

from __future__ import annotations

import heapq

from ..problem import Problem


class Separators:
    """The recursion. part[i]: the part in whose separator operation i is. path[i]: that part and those around it, from
    the whole step on. depth: of each part; the whole step has 0. width: of the decomposition; no separator has more
    than width + 1 operations."""

    def __init__(self, problem: Problem) -> None:
        self.path: dict[int, tuple[int, ...]] = {}
        self.part: dict[int, int] = {}
        self.depth: list[int] = []
        bags, parent = decomposition(problem)
        self.width = max(map(len, bags.values()), default=1) - 1
        self._split(bags, parent)

    def _split(self, bags: dict[int, set[int]], parent: dict[int, int | None]) -> None:
        around: dict[int, set[int]] = {b: set() for b in bags}
        for child, above in parent.items():
            if above is not None:
                around[child].add(above)
                around[above].add(child)
        left = [(component, tuple[int, ...]()) for component in _components(around, set(bags))]
        while left:
            inside, above = left.pop()
            middle = _centroid(around, inside)
            number = len(self.depth)
            self.depth.append(len(above))
            path = (*above, number)
            for i in bags[middle] - self.part.keys():
                self.part[i], self.path[i] = number, path
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
