"""Small bare instances: random ones of several kinds, and the fastest sequence of a tiny one by looking at all."""

from __future__ import annotations

import heapq
import random

from remate.standalone_graphs import FORMAT, BareInstance, BareNode
from remate.standalone_graphs.form import checked, inputs


def random_dag(seed: int, count: int) -> BareInstance:
    """Every kind of thing an instance can say, by chance: several outputs, workspace, nodes that run once, in-place
    candidates, a forward/backward boundary, pins."""
    r = random.Random(seed)
    nodes: list[BareNode] = []
    edges: list[tuple[str, str]] = []
    plain = seed % 2 == 0
    collected: list[tuple[str, int]] = []
    for n in range(count):
        read = (
            list(
                dict.fromkeys(
                    r.choice(collected[-6:] if r.random() < 0.7 else collected) for _ in range(r.randint(1, 2))
                )
            )
            if collected
            else []
        )
        sizes = tuple(r.randint(1, 12) for _ in range(1 if plain or r.random() < 0.7 else 2))
        name, in_place = f"n{n}", ()
        if not plain and read and r.random() < 0.4:
            sizes, in_place = (read[0][1],), (read[0][0],)
            if len(read) == 2 and read[1][1] == read[0][1]:
                in_place = (read[0][0], read[1][0])
        edges += [(output, name) for output, _ in read]
        once = not plain and r.random() < 0.15
        nodes.append(BareNode(name, r.randint(1, 9), sizes, 0 if plain else r.choice((0, 0, 3)), not once, in_place))
        collected += [(f"{name}:{k}" if k else name, size) for k, size in enumerate(sizes)]
    backward_start = None if seed % 3 == 0 else f"n{count // 2}"
    if seed % 3 == 2:  # as in a training step: what follows the forward/backward boundary runs once
        nodes = [
            n if at < count // 2 else BareNode(n.id, n.time, n.bytes, n.workspace, False, n.in_place)
            for at, n in enumerate(nodes)
        ]
    pins = tuple(dict.fromkeys(r.choice(collected)[0] for _ in range(r.randint(0, 2)))) if not plain else ()
    return checked(BareInstance(FORMAT, 1, tuple(nodes), tuple(edges), f"random {seed}", (), backward_start, pins))


def fastest(bare: BareInstance, budget: int) -> int | None:
    """The least time of any sequence within the budget that keeps the order of first executions: Dijkstra over the next
    node and the outputs that are held, with no knowledge of the planner's rules. None if there is none."""
    nodes = {node.id: node for node in bare.nodes}
    names, reads = list(bare.order), inputs(bare)
    size = {f"{n.id}:{k}" if k else n.id: b for n in bare.nodes for k, b in enumerate(n.bytes)}
    by_name = {name: frozenset(o for o in size if o.partition(":")[0] == name) for name in names}
    queue: list[tuple[int, int, int, frozenset[str]]] = [(0, 0, 0, frozenset())]
    best = {(0, frozenset[str]()): 0}
    serial = 0
    while queue:
        time, _, at, held = heapq.heappop(queue)
        if best[at, held] < time:
            continue
        if at == len(names) and held.issuperset(bare.pins):
            return time
        ways: list[tuple[int, int, frozenset[str]]] = [(time, at, held - {o}) for o in held]
        again = [name for name in names[:at] if nodes[name].recomputable]
        first = [(names[at], at + 1)] if at < len(names) else []  # behind the last node, what is pinned may run again
        for name, following in (*first, *((name, at) for name in again)):
            if not held.issuperset(reads[name]):
                continue
            node, there = nodes[name], held | by_name[name]
            need = sum(size[o] for o in there) + node.workspace
            if need <= budget:
                ways.append((time + node.time, following, there))
            for victim in node.in_place:
                if victim in held and need - size[victim] <= budget:
                    ways.append((time + node.time, following, there - {victim}))
        for cost, following, there in ways:
            if cost < best.get((following, there), 1 << 60):
                best[following, there] = cost
                serial += 1
                heapq.heappush(queue, (cost, serial, following, there))
    return None
