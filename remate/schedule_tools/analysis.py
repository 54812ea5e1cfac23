"""A schedule file opened for inspection: decoded, expanded, linked and simulated. Loads neither torch nor a solver."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError, ScheduleFaultsError
from remate_runtime.flat_step import Expanded, Graph, Ref, expand, is_parameter, lay_out
from remate_runtime.format import PageMemory, Schedule, decode, locate, read
from remate_runtime.link import (
    LABELS,
    Allocation,
    Computation,
    Deliver,
    Execution,
    Free,
    Linked,
    PageBack,
    PageGone,
    PageOut,
    PageReady,
    Paging,
    RecomputeRun,
    Timeline,
    account,
    link,
    parameter_bytes,
    simulate,
)

_PAGING = {PageOut: "page out", PageGone: "page out", PageBack: "page back", PageReady: "page back"}
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


class Analysis(msgspec.Struct, frozen=True, dict=True):
    """A schedule and everything that is derived from it."""

    schedule: Schedule
    expanded: Expanded
    linked: Linked
    timeline: Timeline

    @property
    def graph(self) -> Graph:
        return self.linked.graph

    @cached_property
    def counted_parameters(self) -> int:
        """Bytes of all parameters if they count towards the peak because some are paged, otherwise 0."""
        return parameter_bytes(self.graph) if self.linked.parameters_paged else 0

    @cached_property
    def contents(self) -> dict[Allocation, list[tuple[int, int | None]]]:
        """For each storage of the device: (first position, value) pairs; the value is None for a generator's state. A
        storage has several pairs if operations overwrite it in place."""
        root = self.graph.root
        held: dict[int, Allocation] = {}  # by value that owns its storage in the graph: where it is now
        allocations = self.timeline.device.allocations
        born = {(a.birth, a.value): a for a in allocations}
        contents: dict[Allocation, list[tuple[int, int | None]]] = {a: [(a.birth, a.value)] for a in allocations}
        for at, event in enumerate(self.linked.events):
            if isinstance(event, PageBack) and (allocation := born.get((at, event.value))) is not None:
                held[event.value] = allocation
            if not isinstance(event, Computation):
                continue
            op = self.graph.operations[event.op]
            over = None if event.overwrites is None else op.args[event.overwrites]
            for written in op.writes:
                if written is None:
                    continue
                allocation = held.get(root[over.value]) if isinstance(over, Ref) else born.get((at, written))
                if allocation is not None:
                    held[written] = allocation
                    if isinstance(over, Ref):
                        contents[allocation].append((at, written))
        return contents

    @cached_property
    def without_recomputes(self) -> Linked:
        """The same step without recomputations, pages and splits."""
        return link(self.expanded.unsplit)

    @cached_property
    def baseline(self) -> Timeline:
        """The cost of the step with the empty plan."""
        return simulate(self.without_recomputes)


def phase(opened: Analysis, at: int) -> str:
    """Return "forward", "backward" or "recompute" for the event at a position."""
    if isinstance(opened.linked.events[at], RecomputeRun):
        return "recompute"
    return "forward" if at < opened.timeline.backward_start else "backward"


def open_schedule(path: str) -> Analysis:
    """Read the file at `path`. Raises ScheduleError, whose `faults` list every fault with line and column."""
    data = read(path)
    try:
        return open_text(data)
    except ScheduleError as error:
        error.file = path
        raise


def open_text(data: bytes) -> Analysis:
    """Read the bytes of a schedule file. Raises ScheduleError, whose `faults` list every fault with line and column."""
    schedule = decode(data)
    with faults_located(data):
        return analyse(schedule)


@contextmanager
def faults_located(data: bytes) -> Generator[None]:
    """Add lines and columns in the text of a schedule to the faults that the `with` block raises."""
    try:
        yield
    except ScheduleError as error:
        raise ScheduleFaultsError(locate(data, error.faults)) from None


def analyse(schedule: Schedule) -> Analysis:
    expanded = expand(schedule)
    linked = link(expanded.graph, expanded.recomputes, expanded.pages)
    return Analysis(schedule, expanded, linked, simulate(linked))


def unsplit(opened: Analysis) -> Analysis:
    """The same schedule over the step without its plan, whose operations have the ids of the file."""
    if not opened.expanded.splits:
        return opened
    expanded, places = opened.expanded, tuple(lay_out(opened.schedule)[0])
    bare = replace(expanded, graph=expanded.unsplit, places=places, recomputes=(), stated=(), pages=(), paged=())
    return Analysis(opened.schedule, bare, opened.without_recomputes, opened.baseline)


class Recomputing(msgspec.Struct, frozen=True):
    """Recomputations whose operations differ only in the numbers of their names. ns: sum over all `count` of them."""

    name: str
    operator: str
    count: int
    ns: int


def recomputing(opened: Analysis) -> list[Recomputing]:
    """Recomputed operations, grouped by name without numbers, the most expensive first."""
    operations = opened.graph.operations
    count: Counter[tuple[str, str]] = Counter()
    spent: Counter[tuple[str, str]] = Counter()
    for recompute in opened.expanded.recomputes:
        key = pattern(operations[recompute.op].id), operations[recompute.op].op
        count[key] += 1
        spent[key] += operations[recompute.op].ns
    return [Recomputing(*key, count[key], spent[key]) for key in sorted(count, key=lambda key: (-spent[key], key))]


class SplitShare(msgspec.Struct, frozen=True):
    """Operations, by name, that are split together into this number of tiles."""

    operations: tuple[str, ...]
    into: int


def splitting(opened: Analysis) -> list[SplitShare]:
    """Operations that run tile by tile."""
    return [SplitShare(split.operations, split.into) for split in opened.expanded.splits]


class SplitEffects(msgspec.Struct, frozen=True):
    """How splits change results, by name. reordered: parameters and inputs whose gradients are summed in a different
    order. rounded: outputs and gradients that come from matrix products with fewer rows."""

    reordered: tuple[str, ...]
    rounded: tuple[str, ...]


def split_effects(opened: Analysis) -> SplitEffects:
    """How the splits of a schedule change its results."""
    names = [value.name for value in opened.graph.values]
    changed = opened.expanded.reordered, opened.expanded.rounded
    return SplitEffects(*(tuple(names[v] for v in values) for values in changed))


class PagedGroup(msgspec.Struct, frozen=True):
    """Paged values that differ only in the numbers of their names. nbytes: bytes that leave in one step. to: where they
    go."""

    name: str
    to: PageMemory
    count: int
    nbytes: int


def paging(opened: Analysis) -> list[PagedGroup]:
    """Values that leave the device and come back, grouped by name without numbers, the largest group first."""
    sizes_by_group: dict[tuple[str, PageMemory], list[int]] = {}
    for event in opened.linked.events:
        if isinstance(event, PageOut) or (isinstance(event, PageBack) and is_parameter(opened.graph, event.value)):
            key = pattern(opened.graph.values[event.value].name), event.to
            sizes_by_group.setdefault(key, []).append(opened.graph.nbytes(event.value))
    groups = [PagedGroup(name, to, len(sizes), sum(sizes)) for (name, to), sizes in sizes_by_group.items()]
    return sorted(groups, key=lambda group: (-group.nbytes, group.name))


class StorageGroup(msgspec.Struct, frozen=True):
    """Storages that differ only in the numbers of their names. For example `h.*.mlp.act`: 12 storages, and their bytes
    in all."""

    name: str
    type: str
    count: int
    nbytes: int


def held_at(opened: Analysis, position: int) -> list[Allocation]:
    """The storages on the device during the event at `position`."""
    return [a for a in opened.timeline.device.allocations if a.birth <= position < a.death and a.nbytes]


def grouped(opened: Analysis, position: int) -> list[StorageGroup]:
    """Storages on the device during the event at `position`, in groups, the largest first."""
    sizes_of: dict[tuple[str, str], list[int]] = {}
    for allocation in held_at(opened, position):
        sizes_of.setdefault(_label(opened, allocation, position), []).append(allocation.nbytes)
    groups = [StorageGroup(name, kind, len(sizes), sum(sizes)) for (name, kind), sizes in sizes_of.items()]
    return sorted(groups, key=lambda group: (-group.nbytes, group.name))


def _label(opened: Analysis, allocation: Allocation, position: int) -> tuple[str, str]:
    inside = [value for at, value in opened.contents[allocation] if at <= position and value is not None]
    if not inside:
        return pattern(unnamed(allocation)), ""
    value = opened.graph.values[inside[-1]]
    return pattern(value.name), str(value.type)


def unnamed(allocation: Allocation) -> str:
    """Return what a storage is that has no value of the step."""
    return allocation.label or "generator state"


def most_gathered(opened: Analysis, linked: Linked) -> list[tuple[str, int]]:
    """Return the most bytes that FSDP2 uses at once for each purpose; none for a step with whole parameters."""
    if linked.gathers is None:
        return []
    most: list[tuple[str, int]] = []
    for purpose in LABELS.values():
        used = [allocation for allocation in linked.gathers.allocations if allocation.label.startswith(purpose)]
        most.append((purpose, account(used, (), len(linked.events)).peak))
    return most


def pattern(name: str) -> str:
    """`h.3.attn.softmax` -> `h.*.attn.softmax`."""
    return _INDEX.sub("*", name)


def operation_at(opened: Analysis, position: int) -> str:
    """The id of the operation that runs at `position`, marked if it is a recomputation; `(backward_start)` at the
    forward/backward boundary."""
    event = opened.linked.events[position]
    if isinstance(event, Free | Deliver):
        return operation_at(opened, position - 1)
    if isinstance(event, Paging):
        return f"{opened.graph.values[event.value].name} ({_PAGING[type(event)]})"
    if not isinstance(event, Execution):
        return "(turn)"
    return opened.graph.operations[event.op].id + (" (recompute)" if isinstance(event, RecomputeRun) else "")
