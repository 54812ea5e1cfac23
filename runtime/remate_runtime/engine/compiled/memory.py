"""Predicts the memory of a step of compiled and interpreted segments.

A compiled segment is one moment, with the peak that `wrapper.held` predicts. An interpreted segment has one moment per
computation, as in the simulator. Buffer updates are one moment, and the forward/backward boundary is another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...flat_step.graph import DEVICE, Ref
from ...link.deliveries import copied, freed_by_owner
from ...link.events import Allocation, Deliver, Linked, RecomputeRun, Run, Update
from ...link.simulator import Account, account
from ...link.storages import generator_state
from .artefacts import Artefacts, Function
from .live_ranges import Piece
from .segments import Segment
from .wrapper import allocated


class Planned(NamedTuple):
    """A segment and its function. None: the segment is interpreted."""

    segment: Segment
    function: Function | None


class StepAccount(NamedTuple):
    """The account of a step, and for each moment the section and index of the segment that runs; None without one."""

    account: Account
    where: tuple[tuple[int, int] | None, ...]


class _Storage(NamedTuple):
    """A storage. value: the value it was allocated for. kept: the caller holds it to the end of the step."""

    value: int
    nbytes: int
    birth: int
    kept: bool


def predict(
    linked: Linked, sections: Sequence[Sequence[Planned]], left: Collection[int], artefacts: Artefacts
) -> StepAccount:
    """Predict the memory of a step.

    Args:
        linked: The step.
        sections: The segments of forward, then of each delivery.
        left: Values whose storages the forward/backward boundary frees.
        artefacts: The compiled functions.
    """
    moments = _Moments(linked, artefacts)
    deliveries = [event.gradients for event in linked.backward if isinstance(event, Deliver)]
    where: list[tuple[int, int] | None] = []
    for number, section in enumerate(sections):
        for at, planned in enumerate(section):
            if planned.function is not None:
                moments.compiled(planned.segment, planned.function)
            else:
                for piece in planned.segment.pieces:
                    moments.interpreted(piece)
            where += [(number, at)] * (moments.now - len(where))
        if number == 0:
            moments.backward_start(left)
            where += [None] * (moments.now - len(where))
        else:
            moments.deliver(deliveries[number - 1])
            where += [None] * (moments.now - len(where))
    return StepAccount(moments.account(), tuple(where))


class _Moments:
    def __init__(self, linked: Linked, artefacts: Artefacts) -> None:
        self._linked, self._graph, self._artefacts = linked, linked.graph, artefacts
        self._free = frozenset[int]() if linked.graph.delivered == "retained" else freed_by_owner(linked.graph)
        self._outputs = {linked.graph.root[value] for value in linked.graph.outputs}
        self._there: dict[int, _Storage] = {}  # by owner
        self._kept: list[_Storage] = []  # storages whose owner has been recomputed
        self._allocations: list[Allocation] = []
        self._copied = copied(linked.graph)
        self._copies: list[tuple[Allocation, bool]] = []  # of gradients; whether their owners free them
        self._beyond: list[tuple[int, int]] = []
        self._saved: dict[int, int] = {}  # by random operation: the moment at which its state was saved
        self._ahead = True
        self.now = 0

    def compiled(self, segment: Segment, function: Function) -> None:
        """Add a compiled segment. Its function frees the inputs that it owns, whether or not it overwrites them."""
        there, input_types = self._there, function.about.input_types
        ends = {owner for owner in segment.dead if owner in there and not there[owner].kept}
        owned = frozenset(at for at, owner in enumerate(segment.reads) if owner in ends)
        held = self._artefacts.held(function, owned)
        self._end(ends)
        for owner, nbytes in zip(segment.makes, held.result_bytes, strict=True):
            self._make(owner, nbytes)
        inputs = sum(allocated(input_types[at].nbytes, self._artefacts.device) for at in owned)
        self._beyond.append((self.now, held.peak - inputs - sum(held.result_bytes)))
        self.now += 1

    def interpreted(self, piece: Piece) -> None:
        event, op = piece.event, self._graph.operations[piece.event.op]
        over = None if event.overwrites is None else op.args[event.overwrites]
        for value in op.writes:
            if value is not None and isinstance(over, Ref):
                storage = self._there.pop(self._graph.root[over.value])
                self._put(value, storage)
            elif value is not None:
                self._make(value, self._graph.nbytes(value))
        if workspace := self._artefacts.workspaces.interpreted(self._graph, op):
            self._beyond.append((self.now, workspace))
        if op.random:
            self._state(event)
        self._end(owner for owner in piece.dead if owner in self._there and not self._there[owner].kept)
        self.now += 1

    def _state(self, event: Run | RecomputeRun) -> None:
        nbytes, memory = generator_state(self._graph, self._graph.operations[event.op])
        if memory != DEVICE:
            return
        if isinstance(event, Run):
            self._saved[event.op] = self.now
            return
        self._beyond.append((self.now, nbytes))  # the generator's current state
        if event.drops_state:
            self._allocations.append(Allocation(None, nbytes, self._saved[event.op], self.now + 1, DEVICE))

    def backward_start(self, left: Collection[int]) -> None:
        for event in self._linked.forward:
            if isinstance(event, Update) and event.preserves:
                self._make(event.buffer, self._graph.nbytes(event.buffer))
        self._end(owner for owner in list(self._there) if owner in left and not self._there[owner].kept)
        self.now, self._ahead = self.now + 1, False
        for value, about in enumerate(self._graph.values):
            if about.kind == "tangent":
                self._make(value, self._graph.nbytes(value))
        self.now += 1

    def deliver(self, numbers: Iterable[int]) -> None:
        """Deliver gradients after the previous moment. If some are copied, that is a moment of its own."""
        graph, copies = self._graph, {number: self._copied[number] for number in numbers if number in self._copied}
        for number, nbytes in copies.items():
            source, value = graph.gradients[number]
            goes = graph.delivered != "retained" and graph.values[source].kind == "parameter"
            self._copies.append((Allocation(value, nbytes, self.now, self.now + 1, DEVICE), goes))
        self.now += bool(copies)
        given = {self._graph.root[self._graph.gradients[number][1]] for number in numbers}
        self._end(sorted(given & self._free), self.now)

    def account(self) -> Account:
        for storage in (*self._there.values(), *self._kept):
            self._allocations.append(Allocation(storage.value, storage.nbytes, storage.birth, self.now, DEVICE))
        self._allocations += [copy if goes else replace(copy, death=self.now) for copy, goes in self._copies]
        return account(self._allocations, self._beyond, self.now)

    def _make(self, owner: int, nbytes: int) -> None:
        self._put(owner, _Storage(owner, nbytes, self.now, False))

    def _put(self, owner: int, storage: _Storage) -> None:
        graph = self._graph
        if graph.memory(owner) != DEVICE:
            storage = storage._replace(nbytes=0)
        if owner in self._there:
            self._kept.append(self._there.pop(owner))
        tangent = graph.values[owner].kind == "tangent"
        kept = graph.held_by_caller(owner) if tangent else self._ahead and owner in self._outputs
        self._there[owner] = storage._replace(kept=kept)

    def _end(self, owners: Iterable[int], at: int | None = None) -> None:
        """Free storages after this moment, or before the moment `at`."""
        for owner in list(owners):
            storage = self._there.pop(owner)
            death = self.now + 1 if at is None else at
            self._allocations.append(Allocation(storage.value, storage.nbytes, storage.birth, death, DEVICE))
