"""A schedule file opened for inspection: decoded, expanded, linked and simulated. Loads neither torch nor a solver."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property

import msgspec

from remate_runtime.errors import ScheduleError, ScheduleFaultsError
from remate_runtime.format import Schedule, decode, locate, read
from remate_runtime.link import Allocation, Linked, Timeline, link, simulate, steps_with_turn
from remate_runtime.step import Expanded, Graph, Ref, expand

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
    def contents(self) -> dict[Allocation, list[tuple[int, int]]]:
        """What each storage holds: (position from which on, value). More than one where an operation wrote over it."""
        root = self.graph.root
        held: dict[int, Allocation] = {}  # by value that owns its storage in the graph: where it is now
        born = {(h.birth, h.value): h for h in self.linked.allocations}
        found = {h: [(h.birth, h.value)] for h in self.linked.allocations}
        for at, step in enumerate(steps_with_turn(self.linked)):
            op = None if step is None else self.graph.operations[step.op]
            if step is None or op is None or op.view:
                continue
            over = op.args[step.in_place] if step.in_place >= 0 else None
            for made in op.writes:
                allocation = held.get(root[over.value]) if isinstance(over, Ref) else born.get((at, made or 0))
                if made is not None and allocation is not None:
                    held[made] = allocation
                    if isinstance(over, Ref):
                        found[allocation].append((at, made))
        return found

    @cached_property
    def without_reruns(self) -> Linked:
        """The same graph, everything kept."""
        return link(self.graph)

    @cached_property
    def keep_all(self) -> Timeline:
        """What the same graph costs without any rerun."""
        return simulate(self.without_reruns)


def open_schedule(path: str) -> Analysis:
    """Read the file at `path`. Raises ScheduleError; its `faults` are all that was found, with line and column."""
    return open_text(read(path))


def open_text(data: bytes) -> Analysis:
    """The same for the bytes of a file."""
    schedule = decode(data)
    try:
        return analyse(schedule)
    except ScheduleError as error:
        raise ScheduleFaultsError(locate(data.decode(), error.faults)) from None


def analyse(schedule: Schedule) -> Analysis:
    expanded = expand(schedule)
    linked = link(expanded.graph, expanded.reruns)
    return Analysis(schedule, expanded, linked, simulate(linked))


class Rerunning(msgspec.Struct, frozen=True):
    """Reruns of operations that differ only in the numbers of their names. ns: of all `count` of them."""

    name: str
    operator: str
    count: int
    ns: int


def rerunning(opened: Analysis) -> list[Rerunning]:
    """What runs again, by name without numbers, the most expensive first."""
    operations = opened.graph.operations
    count: Counter[tuple[str, str]] = Counter()
    spent: Counter[tuple[str, str]] = Counter()
    for rerun in opened.expanded.reruns:
        key = pattern(operations[rerun.op].id), operations[rerun.op].op
        count[key] += 1
        spent[key] += operations[rerun.op].ns
    return [Rerunning(*key, count[key], spent[key]) for key in sorted(count, key=lambda key: (-spent[key], key))]


class Group(msgspec.Struct, frozen=True):
    """Storages that differ only in the numbers of their names: `h.*.mlp.act`, 12 of them, bytes in all."""

    name: str
    type: str
    count: int
    nbytes: int


def held_at(opened: Analysis, position: int) -> list[Allocation]:
    """The storages that are held while the step at `position` runs."""
    return [h for h in opened.linked.allocations if h.birth <= position <= h.death and h.nbytes]


def grouped(opened: Analysis, position: int) -> list[Group]:
    """What is held while the step at `position` runs, in groups, the largest first."""
    found: dict[tuple[str, str], list[int]] = {}
    for allocation in held_at(opened, position):
        found.setdefault(_label(opened, allocation, position), []).append(allocation.nbytes)
    groups = [Group(name, kind, len(sizes), sum(sizes)) for (name, kind), sizes in found.items()]
    return sorted(groups, key=lambda group: (-group.nbytes, group.name))


def _label(opened: Analysis, allocation: Allocation, position: int) -> tuple[str, str]:
    if allocation.value < 0:
        return "generator state", ""
    inside = [value for at, value in opened.contents[allocation] if at <= position]
    value = opened.graph.values[inside[-1]]
    return pattern(value.name), str(value.type)


def pattern(name: str) -> str:
    """`h.3.attn.softmax` -> `h.*.attn.softmax`."""
    return _INDEX.sub("*", name)


def operation_at(opened: Analysis, position: int) -> str:
    """The id of the operation that runs at `position`; a rerun says so; `(turn)` where backward starts."""
    step = steps_with_turn(opened.linked)[position]
    if step is None:
        return "(turn)"
    return opened.graph.operations[step.op].id + (" (rerun)" if step.rerun else "")
