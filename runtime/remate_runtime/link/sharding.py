"""Memory of parameters that FSDP2 shards: what a rank uses beside its own shards. Does not require torch.

FSDP2 acts at the borders of `link.borders`. Each group of parameters (those of a sharded module, beside the ones of
sharded modules within) is

- gathered: all ranks' shards go to one buffer, from which each parameter is copied. In forward the buffer stays until
  the next group is gathered; in backward it is freed at once.
- released after forward, unless the group is kept.
- gathered again in backward. At the same time, the buffer of the group that forward released before is filled.
- reduced: the parameters are freed. The gradients go to a buffer, which is reduced to the gradients of the shards, and
  stays until the next reduction.

The model's own group is gathered before the first operation, released after the last one of forward, and reduced after
the last one of backward, as are the groups whose last gradients arrive then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..flat_step.graph import DEVICE, Graph
from ..format.distributed import Sharded
from ..format.module_paths import unfold_paths
from ..operators.tables import DEVICES
from .borders import Border, backward_borders, forward_borders
from .events import Allocation, Deliver, Execution, Gathers, Linked

MODEL = 0  # number of the model's own group
# What FSDP2 holds, and its name.
LABELS = {
    "whole": "gathered parameters",
    "buffer": "buffer of gathering",
    "gradients": "buffer of reducing",
    "shards": "gradients of shards",
}


class Group(NamedTuple):
    """Parameters that are gathered together. Bytes are of the whole group, padded to equal shards.

    Attributes:
        path: Path of the module.
        kept: Whether the parameters stay from forward to backward.
        whole: Bytes of the parameters, each a storage of its own.
        buffer: Bytes of the buffer that they are gathered in.
        gradients: The same of the buffer that their gradients are reduced in; 0 without gradients.
        shards: Bytes of the reduced gradients of one rank.
    """

    path: str
    kept: bool
    whole: int
    buffer: int
    gradients: int
    shards: int


class Groups(NamedTuple):
    """The groups of a step, the model's first, then in the order of the file, and the group of each parameter."""

    groups: tuple[Group, ...]
    of: Mapping[int, int]


def groups_of(graph: Graph, sharded: Sharded) -> Groups:
    """Return the groups of a step's parameters."""
    paths = ["", *dict.fromkeys(unfold_paths(sharded.modules))]
    number, kept = {path: at for at, path in enumerate(paths)}, {*unfold_paths(sharded.kept)}
    of = {value: _owner(about.name, number) for value, about in enumerate(graph.values) if about.kind == "parameter"}
    trained, unit = {source for source, _ in graph.gradients}, DEVICES[graph.device].allocation
    groups: list[Group] = []
    for at, path in enumerate(paths):
        sizes = {value: _padded(graph, value, sharded.shards) for value, group in of.items() if group == at}
        reduced = sum(nbytes for value, nbytes in sizes.items() if value in trained)
        shards = _rounded(reduced // sharded.shards, unit)
        whole = sum(_rounded(nbytes, unit) for nbytes in sizes.values())
        buffer = _rounded(sum(sizes.values()), unit)
        groups.append(Group(path, path in kept, whole, buffer, _rounded(reduced, unit), shards))
    return Groups(tuple(groups), of)


def _owner(name: str, number: Mapping[str, int]) -> int:
    """Return the number of the innermost sharded module that contains a parameter."""
    path = name.rpartition(".")[0]
    while path and path not in number:
        path = path.rpartition(".")[0]
    return number[path]


def _padded(graph: Graph, parameter: int, shards: int) -> int:
    kind = graph.values[parameter].type.dense
    first = kind.shape[0] if kind.shape else 1
    return kind.nbytes // max(1, first) * (-(-first // shards) * shards)


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def with_gathers(linked: Linked) -> Linked:
    """Return the step with the memory of its gathered parameters, if FSDP2 shards them.

    The gradients of sharded parameters are freed when their group is reduced.
    """
    sharded = linked.graph.sharded
    if sharded is None:
        return linked
    return _Ranks(linked, groups_of(linked.graph, sharded)).result()


class _Bytes(msgspec.Struct):
    """Bytes in use from the moment before event `birth` to the one before event `death`."""

    label: str
    nbytes: int
    birth: int
    death: int


class _Ranks:
    """What FSDP2 does, border by border."""

    def __init__(self, linked: Linked, groups: Groups) -> None:
        self.linked, self.groups, self.of = linked, groups.groups, groups.of
        self.end = len(linked.events) - 1  # what follows the last event is a moment of it
        self.used: list[_Bytes] = []
        self.moments: list[tuple[int, tuple[_Bytes, ...], dict[int, int]]] = []  # position, what is in use, `pending`
        self.live: dict[tuple[str, int], _Bytes] = {}
        self.last: int | None = None  # group whose buffer forward still holds
        self.order: list[int] = []  # groups as forward released them
        self.reduced: dict[int, int] = {}  # position by group
        self.pending: dict[int, int] = {}  # bytes of gradients by group, until it is reduced
        for allocation, group in self._gradients():
            self.pending[group] = self.pending.get(group, 0) + allocation.nbytes

    def result(self) -> Linked:
        forward, backward = self._borders()
        self._gather(MODEL, 0)
        for at, border in forward:
            self._act(border, at)
        boundary = self.linked.backward_start
        self._release(MODEL, boundary)
        self._free("buffer", self.last, boundary)
        if self.linked.backward:
            self._gather_again(MODEL, boundary + 1)
            for at, border in backward:
                self._act(border, at)
            for group in range(len(self.groups)):
                if group not in self.reduced:
                    self._reduce(group, self.end)
        return self._linked()

    def _borders(self) -> tuple[list[tuple[int, Border]], list[tuple[int, Border]]]:
        """Return the borders of forward and of backward with their positions, but those of the model's own group."""
        linked, inner = self.linked, {value: group for value, group in self.of.items() if group != MODEL}
        boundary, backward = linked.backward_start, list[tuple[int, Border]]()
        forward = _placed(linked, forward_borders(linked.graph, linked.forward, inner), 0, boundary)
        begin = boundary + 1
        for borders in backward_borders(linked, inner):
            end = next(p for p in range(begin, len(linked.events)) if isinstance(linked.events[p], Deliver))
            backward += _placed(linked, borders, begin, end)
            begin = end + 1
        return forward, backward

    def _act(self, border: Border, at: int) -> None:
        match border.does:
            case "gather":
                self._gather(border.group, at)
            case "release":
                self._release(border.group, at)
            case "gather again":
                self._gather_again(border.group, at)
            case "reduce":
                self._reduce(border.group, at)

    def _gather(self, group: int, at: int) -> None:
        if not self.groups[group].whole or ("whole", group) in self.live:
            return
        self._use("buffer", group, self.groups[group].buffer, at)
        self._free("buffer", self.last, at)
        self._use("whole", group, self.groups[group].whole, at)
        self.last = group

    def _release(self, group: int, at: int) -> None:
        if not self.groups[group].whole:
            return
        if not self.groups[group].kept:
            self._free("whole", group, at)
        self.order.append(group)

    def _gather_again(self, group: int, at: int) -> None:
        about = self.groups[group]
        if not about.whole:
            return
        if ("whole", group) not in self.live:
            self._fill(group, at)
            self._use("whole", group, about.whole, at)
            self._free("buffer", group, at)
        before = self.order.index(group) if group in self.order else 0
        if before > 0 and ("whole", self.order[before - 1]) not in self.live:
            self._fill(self.order[before - 1], at)

    def _fill(self, group: int, at: int) -> None:
        if ("buffer", group) not in self.live:
            self._use("buffer", group, self.groups[group].buffer, at)

    def _reduce(self, group: int, at: int) -> None:
        about = self.groups[group]
        if not about.whole:
            return
        self.reduced[group] = at
        self._free("whole", group, at)
        self._free("gradients", 0, at)
        if about.gradients:
            self._use("gradients", 0, about.gradients, at)
            self.pending.pop(group, None)
            self._use("shards", group, about.shards, at)

    # Bytes

    def _use(self, what: str, group: int, nbytes: int, at: int) -> None:
        label = LABELS[what] if what == "gradients" else f"{LABELS[what]}: {self.groups[group].path or 'the model'}"
        self.live[what, group] = used = _Bytes(label, nbytes, at, self.end + 1)
        self.used.append(used)
        self.moments.append((at, tuple(self.live.values()), self.pending.copy()))

    def _free(self, what: str, group: int | None, at: int) -> None:
        if group is not None and (used := self.live.pop((what, group), None)) is not None:
            used.death = at

    # The result

    def _gradients(self) -> Iterator[tuple[Allocation, int]]:
        """Yield the allocations of gradients that FSDP2 frees, each with its group."""
        graph, groups = self.linked.graph, dict[int, int]()
        for source, gradient in graph.gradients:
            if source in self.of:
                groups.setdefault(graph.root[gradient], self.of[source])
                groups.setdefault(gradient, self.of[source])
        for allocation in self.linked.allocations:
            if allocation.delivered is not None and allocation.value in groups:
                yield allocation, groups[allocation.value]

    def _linked(self) -> Linked:
        linked, freed = self.linked, {id(allocation): group for allocation, group in self._gradients()}
        allocations = tuple(
            replace(a, delivered=None, death=max(a.birth, self.reduced[freed[id(a)]])) if id(a) in freed else a
            for a in linked.allocations
        )
        beside = tuple(
            (
                at,
                sum(allocation.nbytes for allocation in using if not allocation.birth < at < allocation.death)
                + sum(nbytes for group, nbytes in pending.items() if self.reduced.get(group) == at),
            )
            for at, using, pending in self.moments
        )
        shards = {id(used) for (what, _), used in self.live.items() if what == "shards"}
        held = tuple(
            Allocation(
                None,
                allocation.nbytes,
                allocation.birth,
                allocation.death,
                DEVICE,
                delivered=allocation.birth if id(allocation) in shards else None,
                label=allocation.label,
            )
            for allocation in self.used
        )
        return replace(linked, allocations=allocations, gathers=Gathers(held, beside))


def _placed(linked: Linked, borders: Sequence[Border], begin: int, end: int) -> list[tuple[int, Border]]:
    """Return the borders of the events between two positions, with the position of the event that each precedes."""
    executions = [at for at in range(begin, end) if isinstance(linked.events[at], Execution)]
    return [((*executions, end)[min(border.at, len(executions))], border) for border in borders]
