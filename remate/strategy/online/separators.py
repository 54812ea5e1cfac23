"""Recursive balanced separators of a step, from bags of a tree decomposition of its operations."""

from __future__ import annotations

import heapq

from ..problem import Problem


class Separators:
    """The recursion.

    Attributes:
        part: By operation, the part whose separator contains it.
        path: By operation, the parts that contain it, from the whole step to `part`.
        depth: By part, its depth; the whole step has depth 0.
        width: The width of the decomposition. A separator has at most width + 1 operations.
    """

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
    """Return a tree decomposition of the operations by minimum-degree elimination.

    See H. Bodlaender and A. Koster, Treewidth computations I, 2010.

    Returns:
        The bags, by the operation that each one eliminates, and the parent of each bag.
    """
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
    """Return the vertex of a tree whose removal leaves parts of at most half its size."""
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
