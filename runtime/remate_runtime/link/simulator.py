"""The simulator: the cost of a linked schedule. Every strategy is judged by it, never by its own model.

Peak: bytes that the step (forward and backward) uses at its worst moment beside parameters, buffers, inputs and
optimizer state; outputs, gradients and workspace count. The peak of a schedule is that of device memory. For parts of a
model, it is that of all their calls together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from ..flat_step.graph import DEVICE, HOST, Graph, Op
from ..format.vocabulary import Gradients, PageMemory
from .events import PAGED_TO, Allocation, Linked, Paging, RecomputeRun, Run
from .lanes import Clock, LaneUse, clock


class Account(msgspec.Struct, frozen=True):
    """The bytes of a memory over the step, by position.

    Attributes:
        during: Bytes while event i happens, workspace included.
        after: Bytes when it is over and its last reads are freed, for example by the following `Free`.
        peak_at: The first position with the peak.
    """

    peak: int
    peak_at: int
    during: tuple[int, ...]
    after: tuple[int, ...]
    allocations: tuple[Allocation, ...]


class Timeline(msgspec.Struct, frozen=True):
    """Memory and time of the step.

    Attributes:
        time: ns of all runs, and of waits for paged values.
        backward_start: Position of the forward/backward boundary.
        memories: The account of each memory that the step uses. That of the device always exists, and budgets bound it.
        beside: Device bytes that the other calls of a part use meanwhile. The peak includes them, `during` and `after`
            do not.
        clock: Set if values are paged.
    """

    time: int
    backward_start: int
    memories: Mapping[str, Account]
    beside: int = 0
    clock: Clock | None = None

    @property
    def lanes(self) -> tuple[LaneUse, ...]:
        """The use of the lanes in which values are paged."""
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


def allocations_of(linked: Linked, gradients: Gradients | None = None) -> Iterator[Allocation]:
    """Yield the allocations of a step and of FSDP2, with the death that delivered gradients have. gradients: as for
    `simulate`."""
    retained = (gradients or linked.graph.delivered) == "retained"
    for allocation in (*linked.allocations, *(linked.gathers.allocations if linked.gathers else ())):
        if allocation.delivered is not None:
            death = len(linked.events) if retained else allocation.delivered + 1
            allocation = replace(allocation, death=death)
        yield allocation


def simulate(linked: Linked, gradients: Gradients | None = None) -> Timeline:
    """Return the cost of a linked schedule: bytes of each memory, time in ns.

    Args:
        linked: The step.
        gradients: What happens to delivered gradients. "retained": they stay to the end of the step, as if `.grad` is
            None before. "accumulated" in an existing `.grad`, or "consumed" by an optimizer in backward: they are
            freed. None: what the graph assumes, which budgets refer to.
    """
    retained = (gradients or linked.graph.delivered) == "retained"
    operations = linked.graph.operations
    computations = [
        (at, operations[e.op]) for at, e in enumerate(linked.events) if type(e) is Run or type(e) is RecomputeRun
    ]
    count = len(linked.events)
    by_memory: dict[str, list[Allocation]] = {DEVICE: []}
    gathers = linked.gathers
    for allocation in allocations_of(linked, gradients):
        by_memory.setdefault(allocation.memory, []).append(allocation)
    workspace: dict[str, list[tuple[int, int]]] = {}
    for at, op in computations:
        if op.workspace:
            workspace.setdefault(memory_of_workspace(linked.graph, op), []).append((at, op.workspace))
    memories = {
        memory: account(
            by_memory.get(memory, []),
            workspace.get(memory, []),
            count,
            gathers.moments if gathers and memory == DEVICE else (),
        )
        for memory in sorted({*by_memory, *workspace})
    }
    beside = resident_by_call(linked).beside(linked.graph, retained) if linked.graph.calls > 1 else 0
    time, clock_of_pages = sum(op.ns for _, op in computations), None
    if linked.pages and (paging := {at: event for at, event in enumerate(linked.events) if isinstance(event, Paging)}):
        spent = [0] * count
        for at, op in computations:
            spent[at] = op.ns
        clock_of_pages = clock(linked.graph, paging, spent)
        time = clock_of_pages.time
    return Timeline(time, linked.backward_start, memories, beside, clock_of_pages)


class ResidentBytes(msgspec.Struct, frozen=True):
    """Device bytes that a call of a step leaves.

    Attributes:
        kept: Between its forward and its backward, without tangents.
        gradients: The gradients of its parameters.
    """

    kept: int
    gradients: int

    def by(self, calls: int, modules: int) -> int:
        """Return the most that so many calls use beside a running one.

        The last call comes first in backward, when all others still keep their values; the first one comes last, when
        all others have delivered; in between it is a mixture.
        """
        return max(calls * self.kept, modules * self.gradients)

    def beside(self, graph: Graph, retained: bool) -> int:
        """Return what the other calls of a part use. Of a module that is called twice, the first delivery counts too.

        Args:
            graph: The step.
            retained: Whether delivered gradients are retained.
        """
        others = graph.modules - (graph.calls == graph.modules)
        return self.by(graph.calls - 1, others if retained else 0)


def resident_by_call(linked: Linked) -> ResidentBytes:
    """Return what a call of a step leaves."""
    graph, backward_start = linked.graph, linked.backward_start
    there = [a for a in linked.allocations if a.memory == DEVICE and a.birth <= backward_start < a.death]
    kept = sum(a.nbytes for a in there if a.value is None or graph.values[a.value].kind != "tangent")
    owners = {graph.root[g] for source, g in graph.gradients if graph.values[source].kind == "parameter"}
    return ResidentBytes(
        kept, sum(graph.nbytes(g) for g in owners if graph.memory(g) == DEVICE and graph.values[g].producer >= 0)
    )


def peak_together(parts: Sequence[Linked]) -> int:
    """Return the peak of several parts of a model that run one after the other: a running one beside all others."""
    graphs = [linked.graph for linked in parts]
    modules = [graph.modules if graph.delivered == "retained" else 0 for graph in graphs]
    calls = [graph.calls for graph in graphs]
    resident = [resident_by_call(linked).by(*counts) for linked, *counts in zip(parts, calls, modules, strict=True)]
    peaks = [simulate(linked).peak for linked in parts]
    return max((peak + sum(resident) - own for peak, own in zip(peaks, resident, strict=True)), default=0)


def memory_of_workspace(graph: Graph, op: Op) -> str:
    """Return the memory of an operator's workspace: that of its outputs."""
    written = [value for value in op.writes if value is not None]
    return HOST if written and all(graph.memory(value) == HOST for value in written) else DEVICE


def account(
    allocations: Sequence[Allocation],
    workspace: Iterable[tuple[int, int]],
    count: int,
    before: Iterable[tuple[int, int]] = (),
) -> Account:
    """Return the bytes of a memory at each of `count` moments.

    Args:
        allocations: The allocations.
        workspace: (moment, bytes that are used only then). An engine whose moments are whole segments passes the
            segment's maximum beyond the allocations at its borders, which may be negative.
        count: Number of moments.
        before: (moment, bytes in use at its beginning beside the allocations that last from the moment before to the
            one after).
    """
    born, died = [0] * count, [0] * (count + 1)
    for allocation in allocations:
        if allocation.birth == allocation.death:
            continue
        born[allocation.birth] += allocation.nbytes
        died[allocation.death] += allocation.nbytes
    bytes_at = list(accumulate(b - d for b, d in zip(born, died, strict=False)))
    died[count] = 0  # what the step passes on stays until it ends

    after = tuple(h - d for h, d in zip(bytes_at, died[1:], strict=True))
    least = [(at, bytes_at[at] - born[at] + nbytes) for at, nbytes in before]
    for at, nbytes in workspace:
        bytes_at[at] += nbytes
    for at, nbytes in least:
        bytes_at[at] = max(bytes_at[at], nbytes)
    peak = max(bytes_at, default=0)
    return Account(peak, bytes_at.index(peak) if bytes_at else 0, tuple(bytes_at), after, tuple(allocations))
