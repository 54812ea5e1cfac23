"""Which storages of a step lie in the block, and where.

What leaves the step does not: outputs, gradients, tangents. Nor does what an operator makes that has no form for it,
nor what is read by its place in its storage (`as_strided`).

A block that lies there for the whole step cannot be used by what is made beside it: its height and the most that the
rest takes add up, though these need not come at the same time. Where they add up to more than the step may hold, the
block is as large as what it takes at the step's worst moment, or smaller, and takes at other moments no more than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch

from ....addresses import Buffer, pack
from ....flat_step.graph import DEVICE, Op, Ref
from ....link.events import Allocation, BackwardStart, Computation, Deliver, Linked, View
from ....link.simulator import simulate

ALIGNMENTS = {"cpu": 64}  # of addresses, in bytes, as torch's allocators align
ALIGNMENT = 512
EFFORT = 4_000_000  # of the packer: tenths of a second
_HEIGHTS = (16, 15, 14, 12, 8, 4)  # sixteenths of what the rest leaves, that are tried


class Layout(NamedTuple):
    """addresses: by position of the event, of all that it makes. height: bytes of the block. rest: bytes that the step
    holds beside it at its worst moment. placed, made: bytes that operators write into the block, and all that they
    make. left: by operator, bytes that it makes elsewhere."""

    addresses: Mapping[int, tuple[int, ...]]
    height: int
    rest: int
    placed: int
    made: int
    left: Mapping[str, int]


def layout(linked: Linked, formed: Callable[[Op], bool], budget: int) -> Layout:
    """Find addresses. formed: whether an operator can write its results into given memory. budget: bytes that the step
    may hold."""
    by_event = _made(linked)
    chosen = {at: made for at, made in by_event.items() if formed(linked.graph.operations[linked.events[at].op])}  # type: ignore[union-attr]
    chosen = {at: made for at, made in chosen.items() if made[1] and all(a.nbytes for a in made[0])}
    groups = {at: made for at, (made, _) in chosen.items()}
    everything = _packed(linked, groups)
    if everything.height + everything.rest > budget:
        everything = _within(linked, groups, budget)
    return _told(linked, everything, {at: made for at, (made, _) in by_event.items()})


def _made(linked: Linked) -> dict[int, tuple[list[Allocation], bool]]:
    """By position of an event that makes storages: these, and whether all of them may lie in the block."""
    graph, operations = linked.graph, linked.graph.operations
    known = {(a.value, a.birth): a for a in linked.allocations if a.value is not None}
    store, kept = (
        dict[int, tuple[int, int]](),
        set[tuple[int, int]](),
    )  # by value: (value, position) of the storage it is in
    found: dict[int, list[Allocation]] = {}
    for at, event in enumerate(linked.events):
        if isinstance(event, BackwardStart):
            kept.update(store[value] for value in graph.outputs if value in store)
        elif isinstance(event, Deliver):
            kept.update(store[value] for value in (graph.gradients[n][1] for n in event.gradients) if value in store)
        elif isinstance(event, Computation | View):
            op = operations[event.op]
            if op.op.startswith("aten.as_strided"):
                kept.update(store[value] for value in op.reads if value in store)
            for value in op.writes:
                if value is None:
                    continue
                over = None if isinstance(event, View) or event.overwrites is None else op.args[event.overwrites]
                base = op.reads[0] if isinstance(event, View) else over.value if isinstance(over, Ref) else None
                if base is None:
                    store[value] = value, at
                    found.setdefault(at, []).append(known[value, at])
                elif base in store:
                    store[value] = store[base]
                else:
                    store.pop(value, None)  # of a tensor that is somebody else's
    return {
        at: (made, all((a.value, at) not in kept and a.memory == DEVICE for a in made)) for at, made in found.items()
    }


Groups = Mapping[int, Sequence[Allocation]]


def _packed(linked: Linked, groups: Groups, effort: int = EFFORT) -> Layout:
    inside = [a for made in groups.values() for a in made]
    packing = pack([Buffer(a.birth, a.death, _aligned(linked, a)) for a in inside], effort)
    at = iter(packing.addresses)
    addresses = {position: tuple(next(at) for _ in made) for position, made in groups.items()}
    return Layout(addresses, packing.height, _rest(linked, inside), sum(a.nbytes for a in inside), 0, {})


def _aligned(linked: Linked, allocation: Allocation) -> int:
    unit = ALIGNMENTS.get(linked.graph.device, ALIGNMENT)
    return -(-allocation.nbytes // unit) * unit


def _rest(linked: Linked, inside: Sequence[Allocation]) -> int:
    """The most that a step holds beside what is in the block."""
    taken = {(a.value, a.birth) for a in inside}
    others = tuple(a for a in linked.allocations if (a.value, a.birth) not in taken)
    return simulate(msgspec.structs.replace(linked, allocations=others)).peak


def _within(linked: Linked, groups: Groups, budget: int) -> Layout:
    """Less in the block, so that it and the rest are within a budget; nothing where that cannot be."""
    about = simulate(linked)
    room = budget - _rest(linked, [a for made in groups.values() for a in made])
    for sixteenths in _HEIGHTS if room > 0 else ():
        alive = _alive(groups, about.peak_at, room * sixteenths // 16)
        for chosen in (_filled(linked, groups, alive), alive):
            found = _packed(linked, chosen, EFFORT // 4)
            if chosen and found.height + found.rest <= budget:
                return found
    return Layout({}, 0, about.peak, 0, 0, {})


def _alive(groups: Groups, at: int, height: int) -> Groups:
    """What is there at the worst moment, up to so many bytes; what lives longest is taken first. At no other moment do
    they hold more, so that a block of their size is full when that matters."""
    chosen, taken = dict[int, Sequence[Allocation]](), 0
    for position, made in _by_life(groups):
        nbytes = sum(a.nbytes for a in made)
        if all(a.birth <= at < a.death for a in made) and taken + nbytes <= height:
            chosen[position], taken = made, taken + nbytes
    return dict(sorted(chosen.items()))


def _filled(linked: Linked, groups: Groups, alive: Groups) -> Groups:
    """These, and of all others so much that no moment holds more."""
    load, chosen = torch.zeros(len(linked.events) + 1, dtype=torch.int64), dict(alive)
    for allocation in (a for made in alive.values() for a in made):
        load[allocation.birth : allocation.death] += _aligned(linked, allocation)
    height = int(load.max())
    for position, made in _by_life(groups):
        if position in alive:
            continue
        for allocation in made:
            load[allocation.birth : allocation.death] += _aligned(linked, allocation)
        if any(int(load[a.birth : a.death].max()) > height for a in made):
            for allocation in made:
                load[allocation.birth : allocation.death] -= _aligned(linked, allocation)
        else:
            chosen[position] = made
    return dict(sorted(chosen.items()))


def _by_life(groups: Groups) -> list[tuple[int, Sequence[Allocation]]]:
    """What lives longest first."""
    return sorted(groups.items(), key=lambda one: (-sum(a.death - a.birth for a in one[1]), one[0]))


def _told(linked: Linked, found: Layout, made: Groups) -> Layout:
    """With what there is to report it."""
    left = Counter[str]()
    for at, storages in made.items():
        if at not in found.addresses:
            event = linked.events[at]
            assert isinstance(event, Computation)
            left[linked.graph.operations[event.op].op] += sum(a.nbytes for a in storages)
    return found._replace(made=found.placed + left.total(), left=left)
