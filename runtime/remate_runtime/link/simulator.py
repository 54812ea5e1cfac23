"""The one simulator: what a linked schedule costs. Every strategy is judged by it, never by its own model.

Peak: bytes that the step (forward and backward) holds at its worst moment beyond parameters, buffers, inputs and
optimizer state; outputs, gradients and workspace count. The peak of a schedule is that of the device's memory; of one
for parts of a model, that of all their calls together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from ..flat_step.graph import DEVICE, HOST, Graph, Op
from ..format.vocabulary import Gradients, PageMemory
from .events import PAGED_TO, Allocation, Linked, Paging, RecomputeRun, Run
from .lanes import Clock, LaneUse, clock


class Account(msgspec.Struct, frozen=True):
    """What one memory holds over the step, by position, in bytes.

    during[i]: while event i happens, workspace included. after[i]: when it is over and what dies with it is gone, by
    the `Free` right behind it for one. peak_at: the first position where the peak is reached.
    """

    peak: int
    peak_at: int
    during: tuple[int, ...]
    after: tuple[int, ...]
    allocations: tuple[Allocation, ...]


class Timeline(msgspec.Struct, frozen=True):
    """Memory and time of the step. time: ns of all runs. backward_start: position of the forward/backward boundary.
    memories: the account of each memory that the step uses; that of the device is always there, and it is what a budget
    bounds. beside: bytes of the device that the other calls of a part of a model hold meanwhile; the peak counts them,
    `during` and `after` do not. clock: where values are paged; then `time` includes what the step waits for them."""

    time: int
    backward_start: int
    memories: Mapping[str, Account]
    beside: int = 0
    clock: Clock | None = None

    @property
    def lanes(self) -> tuple[LaneUse, ...]:
        """What the lanes do that values are paged in."""
        return self.clock.lanes if self.clock is not None else ()

    @property
    def stall(self) -> int:
        """ns that the step waits for paged values."""
        return sum(lane.stall for lane in self.lanes)

    @property
    def paged(self) -> dict[PageMemory, int]:
        """Bytes that the step keeps in each memory that values are paged to."""
        return {to: self.memories[name].peak for to, name in PAGED_TO.items() if name in self.memories}

    @property
    def device(self) -> Account:
        return self.memories[DEVICE]

    @property
    def peak(self) -> int:
        return self.device.peak + self.beside

    @property
    def peak_at(self) -> int:
        return self.device.peak_at

    @property
    def during(self) -> tuple[int, ...]:
        return self.device.during

    @property
    def after(self) -> tuple[int, ...]:
        return self.device.after


def simulate(linked: Linked, gradients: Gradients | None = None) -> Timeline:
    """Cost a linked schedule: bytes of each memory, time in ns.

    gradients: what becomes of those that are delivered: "retained" to the end of the step, as where `.grad` is None
    before; "accumulated" in a `.grad` that exists, or "consumed" by an optimizer in backward: gone, in either case.
    None: what the graph assumes, for which budgets are stated.
    """
    held = (gradients or linked.graph.delivered) == "retained"
    operations = linked.graph.operations
    computations = [
        (at, operations[e.op]) for at, e in enumerate(linked.events) if type(e) is Run or type(e) is RecomputeRun
    ]
    count = len(linked.events)
    by_memory: dict[str, list[Allocation]] = {DEVICE: []}
    for allocation in linked.allocations:
        if allocation.delivered is not None:
            allocation = replace(allocation, death=count if held else allocation.delivered + 1)
        by_memory.setdefault(allocation.memory, []).append(allocation)
    workspace: dict[str, list[tuple[int, int]]] = {}
    for at, op in computations:
        if op.workspace:
            workspace.setdefault(memory_of_workspace(linked.graph, op), []).append((at, op.workspace))
    memories = {
        memory: account(by_memory.get(memory, []), workspace.get(memory, []), count)
        for memory in sorted({*by_memory, *workspace})
    }
    beside = resident_by_call(linked).beside(linked.graph, held) if linked.graph.calls > 1 else 0
    time, found = sum(op.ns for _, op in computations), None
    if paging := {at: event for at, event in enumerate(linked.events) if isinstance(event, Paging)}:
        spent = [0] * count
        for at, op in computations:
            spent[at] = op.ns
        found = clock(linked.graph, paging, spent)
        time = found.time
    return Timeline(time, linked.backward_start, memories, beside, found)


class ResidentBytes(msgspec.Struct, frozen=True):
    """Bytes of the device that one call of a step leaves behind. kept: between its forward and its backward, tangents
    apart. made: the gradients of its parameters."""

    kept: int
    made: int

    def by(self, calls: int, modules: int) -> int:
        """What so many calls hold beside another one that is at work, at most. The last call comes first in backward,
        when all others still hold what they keep; the first one comes last, when all others have delivered; in between
        it is a mixture of both."""
        return max(calls * self.kept, modules * self.made)

    def beside(self, graph: Graph, held: bool) -> int:
        """What the other calls of a part hold. Of a module that is called twice, the first delivery is held, too. held:
        are gradients that are delivered?"""
        others = graph.modules - (graph.calls == graph.modules)
        return self.by(graph.calls - 1, others if held else 0)


def resident_by_call(linked: Linked) -> ResidentBytes:
    """What one call of a step leaves behind."""
    graph, backward_start = linked.graph, linked.backward_start
    there = [a for a in linked.allocations if a.memory == DEVICE and a.birth <= backward_start < a.death]
    kept = sum(a.nbytes for a in there if a.value is None or graph.values[a.value].kind != "tangent")
    owners = {graph.root[g] for source, g in graph.gradients if graph.values[source].kind == "parameter"}
    return ResidentBytes(
        kept, sum(graph.nbytes(g) for g in owners if graph.memory(g) == DEVICE and graph.values[g].producer >= 0)
    )


def peak_together(parts: Sequence[Linked]) -> int:
    """The peak of several parts of one model, which run one after the other: one at work, what all others hold beside
    it."""
    graphs = [linked.graph for linked in parts]
    modules = [graph.modules if graph.delivered == "retained" else 0 for graph in graphs]
    calls = [graph.calls for graph in graphs]
    held = [resident_by_call(linked).by(*counts) for linked, *counts in zip(parts, calls, modules, strict=True)]
    peaks = [simulate(linked).peak for linked in parts]
    return max((peak + sum(held) - own for peak, own in zip(peaks, held, strict=True)), default=0)


def memory_of_workspace(graph: Graph, op: Op) -> str:
    """An operator takes its workspace from the memory that its outputs lie in."""
    written = [value for value in op.writes if value is not None]
    return HOST if written and all(graph.memory(value) == HOST for value in written) else DEVICE


def account(allocations: Sequence[Allocation], workspace: Iterable[tuple[int, int]], count: int) -> Account:
    """What one memory holds at each of `count` moments. workspace: (moment, bytes held then alone); an engine whose
    moments are whole segments says there what the worst of a segment is beyond the allocations that it begins or ends
    with, which may be less than nothing.
    """
    born, died = [0] * count, [0] * (count + 1)
    for allocation in allocations:
        born[allocation.birth] += allocation.nbytes
        died[allocation.death] += allocation.nbytes
    held = list(accumulate(b - d for b, d in zip(born, died, strict=False)))
    died[count] = 0  # what the step hands over is held when it ends
    after = tuple(h - d for h, d in zip(held, died[1:], strict=True))
    for at, nbytes in workspace:
        held[at] += nbytes
    peak = max(held, default=0)
    return Account(peak, held.index(peak) if held else 0, tuple(held), after, tuple(allocations))
