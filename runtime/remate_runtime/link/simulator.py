"""The one simulator: what a linked schedule costs. Every strategy is judged by it, never by its own model.

Peak: bytes that the step (forward and backward) holds at its worst moment beyond parameters, buffers, inputs and
optimizer state; outputs, gradients and workspace count. The peak of a schedule is that of the device's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from ..format.vocabulary import Gradients
from ..step.graph import DEVICE, HOST, Graph, Op
from .events import Allocation, Linked, Rerun, Run


class Account(msgspec.Struct, frozen=True):
    """What one memory holds over the step, by position, in bytes.

    during[i]: while event i happens, workspace included. after[i]: when it is over and what dies with it is gone, by the
    `Free` right behind it for one. peak_at: the first position where the peak is reached.
    """

    peak: int
    peak_at: int
    during: tuple[int, ...]
    after: tuple[int, ...]
    allocations: tuple[Allocation, ...]


class Timeline(msgspec.Struct, frozen=True):
    """Memory and time of the step. time: ns of all runs. turn: position of the Turn. memories: the account of each memory
    that the step uses; that of the device is always there, and it is what a budget bounds."""

    time: int
    turn: int
    memories: Mapping[str, Account]

    @property
    def device(self) -> Account:
        return self.memories[DEVICE]

    @property
    def peak(self) -> int:
        return self.device.peak

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

    gradients: what becomes of those that are delivered: "held" to the end of the step, as where `.grad` is None before;
    "accumulated" in a `.grad` that exists, or "consumed" by an optimizer in backward: gone, in either case. None: what the
    graph assumes, for which budgets are stated.
    """
    held = (gradients or linked.graph.delivered) == "held"
    operations = linked.graph.operations
    computations = [(at, operations[e.op]) for at, e in enumerate(linked.events) if type(e) is Run or type(e) is Rerun]
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
    return Timeline(sum(op.ns for _, op in computations), linked.turn, memories)


def memory_of_workspace(graph: Graph, op: Op) -> str:
    """An operator takes its workspace from the memory that its outputs lie in."""
    written = [value for value in op.writes if value is not None]
    return HOST if written and all(graph.memory(value) == HOST for value in written) else DEVICE


def account(allocations: Sequence[Allocation], workspace: Iterable[tuple[int, int]], count: int) -> Account:
    """What one memory holds at each of `count` moments. workspace: (moment, bytes held then alone); an engine whose moments
    are whole segments says there what the worst of a segment is beyond the allocations that it begins or ends with, which may
    be less than nothing.
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
