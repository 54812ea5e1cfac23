"""Decides which storages of a step are in the block, and where.

Storages that leave the step (outputs, gradients, tangents) are not, nor results of operators without a form, nor what
is read by its position in its storage (`as_strided`).

A block that exists for the whole step cannot be used for anything outside it: its height and the largest remainder add
up, although they need not occur at the same time. If their sum exceeds the step's budget, the block is limited to what
it needs at the step's worst moment, or less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch

from ....addresses import Buffer, pack
from ....flat_step.graph import DEVICE, Op, Ref
from ....link.events import Allocation, BackwardStart, Computation, Deliver, Execution, Linked, View
from ....link.simulator import simulate

ALIGNMENTS = {"cpu": 64}  # alignment of addresses in bytes, as in torch's allocators
ALIGNMENT = 512
EFFORT = 4_000_000  # effort of the packer: tenths of a second
_HEIGHTS = (16, 15, 14, 12, 8, 4)  # heights to try, in sixteenths of the budget that remains


class Layout(NamedTuple):
    """A layout.

    Attributes:
        addresses: By position of the event, of everything that it computes.
        height: Bytes of the block.
        rest: Peak of other memory of the step in bytes.
        placed: Bytes that operators write into the block.
        computed: Bytes that operators compute.
        left: Bytes outside the block, by operator.
    """

    addresses: Mapping[int, tuple[int, ...]]
    height: int
    rest: int
    placed: int
    computed: int
    left: Mapping[str, int]


def layout(linked: Linked, formed: Callable[[Op], bool], budget: int) -> Layout:
    """Find addresses.

    Args:
        linked: The step.
        formed: Returns whether an operator can write its results into given memory.
        budget: Bytes that the step may use.
    """
    by_event = _allocated(linked)
    chosen = {at: result for at, result in by_event.items() if formed(operation_at(linked, at))}
    chosen = {at: result for at, result in chosen.items() if result[1] and all(a.nbytes for a in result[0])}
    groups = {at: result for at, (result, _) in chosen.items()}
    everything = _packed(linked, groups)
    if everything.height + everything.rest > budget:
        everything = _within(linked, groups, budget)
    return _with_figures(linked, everything, {at: result for at, (result, _) in by_event.items()})


def operation_at(linked: Linked, at: int) -> Op:
    """Return the operation that an event executes."""
    event = linked.events[at]
    assert isinstance(event, Execution)
    return linked.graph.operations[event.op]


def _allocated(linked: Linked) -> dict[int, tuple[list[Allocation], bool]]:
    """Return for each event that creates storages: these, and whether all of them may be in the block."""
    graph, operations = linked.graph, linked.graph.operations
    known = {(a.value, a.birth): a for a in linked.allocations if a.value is not None}
    store, kept = (
        dict[int, tuple[int, int]](),
        set[tuple[int, int]](),
    )  # by value: (value, position) of the storage it is in
    by_event: dict[int, list[Allocation]] = {}
    for at, event in enumerate(linked.events):
        if isinstance(event, BackwardStart):
            kept.update(store[value] for value in graph.outputs if value in store)
        elif isinstance(event, Deliver):
            kept.update(store[value] for value in (graph.gradients[n][1] for n in event.gradients) if value in store)
        elif isinstance(event, Execution):
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
                    by_event.setdefault(at, []).append(known[value, at])
                elif base in store:
                    store[value] = store[base]
                else:
                    store.pop(value, None)  # of a tensor that is somebody else's
    return {
        at: (allocations, all((a.value, at) not in kept and a.memory == DEVICE for a in allocations))
        for at, allocations in by_event.items()
    }


Groups = Mapping[int, Sequence[Allocation]]


def _packed(linked: Linked, groups: Groups, effort: int = EFFORT) -> Layout:
    inside = [a for allocations in groups.values() for a in allocations]
    packing = pack([Buffer(a.birth, a.death, _aligned(linked, a)) for a in inside], effort)
    at = iter(packing.addresses)
    addresses = {position: tuple(next(at) for _ in allocations) for position, allocations in groups.items()}
    return Layout(addresses, packing.height, _rest(linked, inside), sum(a.nbytes for a in inside), 0, {})


def _aligned(linked: Linked, allocation: Allocation) -> int:
    unit = ALIGNMENTS.get(linked.graph.device, ALIGNMENT)
    return -(-allocation.nbytes // unit) * unit


def _rest(linked: Linked, inside: Sequence[Allocation]) -> int:
    """Return the peak of memory outside the block."""
    taken = {(a.value, a.birth) for a in inside}
    others = tuple(a for a in linked.allocations if (a.value, a.birth) not in taken)
    return simulate(msgspec.structs.replace(linked, allocations=others)).peak


def _within(linked: Linked, groups: Groups, budget: int) -> Layout:
    """Put less into the block, so that it and the rest are within a budget; nothing if that is impossible."""
    about = simulate(linked)
    room = budget - _rest(linked, [a for allocations in groups.values() for a in allocations])
    for sixteenths in _HEIGHTS if room > 0 else ():
        alive = _alive(groups, about.peak_at, room * sixteenths // 16)
        for chosen in (_filled(linked, groups, alive), alive):
            candidate = _packed(linked, chosen, EFFORT // 4)
            if chosen and candidate.height + candidate.rest <= budget:
                return candidate
    return Layout({}, 0, about.peak, 0, 0, {})


def _alive(groups: Groups, at: int, height: int) -> Groups:
    """Return what is in memory at the worst moment, up to `height` bytes, longest lifetimes first.

    These storages use no more at any other moment, so that a block of their size is full when it matters.
    """
    chosen, taken = dict[int, Sequence[Allocation]](), 0
    for position, allocations in _by_life(groups):
        nbytes = sum(a.nbytes for a in allocations)
        if all(a.birth <= at < a.death for a in allocations) and taken + nbytes <= height:
            chosen[position], taken = allocations, taken + nbytes
    return dict(sorted(chosen.items()))


def _filled(linked: Linked, groups: Groups, alive: Groups) -> Groups:
    """Add other storages without exceeding the maximum at any moment."""
    load, chosen = torch.zeros(len(linked.events) + 1, dtype=torch.int64), dict(alive)
    for allocation in (a for allocations in alive.values() for a in allocations):
        load[allocation.birth : allocation.death] += _aligned(linked, allocation)
    height = int(load.max())
    for position, allocations in _by_life(groups):
        if position in alive:
            continue
        for allocation in allocations:
            load[allocation.birth : allocation.death] += _aligned(linked, allocation)
        if any(int(load[a.birth : a.death].max()) > height for a in allocations):
            for allocation in allocations:
                load[allocation.birth : allocation.death] -= _aligned(linked, allocation)
        else:
            chosen[position] = allocations
    return dict(sorted(chosen.items()))


def _by_life(groups: Groups) -> list[tuple[int, Sequence[Allocation]]]:
    """Return groups by decreasing lifetime."""
    return sorted(groups.items(), key=lambda group: (-sum(a.death - a.birth for a in group[1]), group[0]))


def _with_figures(linked: Linked, chosen: Layout, all_groups: Groups) -> Layout:
    """Add figures for the log."""
    left = Counter[str]()
    for at, storages in all_groups.items():
        if at not in chosen.addresses:
            event = linked.events[at]
            assert isinstance(event, Computation)
            left[linked.graph.operations[event.op].op] += sum(a.nbytes for a in storages)
    return chosen._replace(computed=chosen.placed + left.total(), left=left)
