"""Converts plans of a schedule file to flat recomputations and pages: indices of operations and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, takewhile

import msgspec
from msgspec.structs import replace

from ..errors import ScheduleError, ScheduleFaultsError
from ..format.limits import MAX_FAULTS, MAX_ITEMS, MAX_RECOMPUTES
from ..format.schedule import BASELINE, Page, Recompute, Schedule, Split, Statement, named
from ..format.signature import escape
from ..format.suggest import did_you_mean
from .graph import FlatPage, FlatRecompute, Graph
from .layout import InstanceSpan
from .page_rules import check_page, held_outside, stays
from .recompute_rules import check_recomputes
from .tile_writer import TILE


class Stated(msgspec.Struct, frozen=True):
    """A recomputation or a page, and the JSON pointer of its name in the file."""

    flat: FlatRecompute | FlatPage
    where: str


class StatedSplit(msgspec.Struct, frozen=True):
    """A split of a file.

    Attributes:
        operations: Full ids.
        into: Number of tiles.
        where: JSON pointer of the statement.
    """

    operations: tuple[str, ...]
    into: int
    where: str


class Plan(msgspec.Struct, frozen=True):
    """All plans of a file together.

    Attributes:
        recomputes: In execution order.
        stated: JSON pointer of the name of each recomputation.
        pages: Those of outer statements first.
        paged: JSON pointer of the name of each page.
    """

    recomputes: tuple[FlatRecompute, ...]
    stated: tuple[str, ...]
    pages: tuple[FlatPage, ...]
    paged: tuple[str, ...]


class _Names(msgspec.Struct, frozen=True):
    """The names that a plan can use.

    Attributes:
        prefix: Prefix of the plan's ids.
        operations: By full id.
        tiles: The operations that a split operation became, by its full id.
        instances: By full id.
        held: See `stays`.
    """

    prefix: str
    graph: Graph
    operations: Mapping[str, int]
    tiles: Mapping[str, Sequence[int]]
    instances: Mapping[str, InstanceSpan]
    held: Mapping[int, str]

    def at(self, prefix: str) -> _Names:
        return replace(self, prefix=prefix)

    def point(self, name: str, code: str, where: str) -> int:
        """Return the operation that a point precedes."""
        full = self.prefix + name
        if full in self.operations:
            return self.operations[full]
        if full in self.tiles:
            return self.tiles[full][0]
        if full not in self.instances:
            raise ScheduleError(code, f"{name[:120]!r} is no operation or instance here", where, self.meant(name))
        backward = self.instances[full].backward
        if not backward:
            message = f"the instance {name[:120]!r} has no backward"
            raise ScheduleError(code, message, where, "name an operation")
        return backward.start

    def meant(self, name: str) -> str:
        every = chain(self.operations, self.instances, self.tiles)
        known = (n[len(self.prefix) :] for n in every if n.startswith(self.prefix))
        return did_you_mean(name, known, "name an operation by its id")


def flat_plan(schedule: Schedule, places: Sequence[InstanceSpan], graph: Graph) -> Plan:
    """Return all statements except splits, which `graph` already contains.

    Raises:
        ScheduleError: R04x.
    """
    operations = {op.id: index for index, op in enumerate(graph.operations)}
    instances = {place.id: place for place in places}
    names = _Names("", graph, operations, tiles_by_id(operations), instances, held_outside(graph))
    faults: list[ScheduleError] = []
    stated = _stated(schedule, places, faults)
    for name, block in schedule.blocks.items():
        if block.plans.get(BASELINE):
            where = f"/blocks/{escape(name)}/plans/{BASELINE}"
            faults.append(
                ScheduleError("R046", "baseline is the plan without recomputation", where, "choose another name")
            )
    _check_size(stated)
    flat: list[Stated] = []
    items = 0
    for prefix, where, statements in stated:
        for at, statement in enumerate(statements):
            try:
                entries = _MEANING[type(statement)](statement, names.at(prefix), f"{where}/{at}")
                items += sum(_items(graph, entry.flat) for entry in entries)
                flat += entries
            except ScheduleError as fault:
                faults.append(ScheduleError(fault.code, fault.message, fault.where or f"{where}/{at}", fault.hint))
            if len(flat) > MAX_RECOMPUTES or items > MAX_ITEMS or len(faults) >= MAX_FAULTS:
                break  # a small file can name very many
        if len(flat) > MAX_RECOMPUTES:
            raise ScheduleError("R072", f"over {MAX_RECOMPUTES} recomputations and pages", where)
        if items > MAX_ITEMS:
            raise ScheduleError("R072", f"recomputations of operations with over {MAX_ITEMS} arguments in all", where)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        unique = _once(faults)
        raise unique[0] if len(unique) == 1 else ScheduleFaultsError(unique)
    pages = [(entry.flat, entry.where) for entry in flat if isinstance(entry.flat, FlatPage)]
    recomputes = [(entry.flat, entry.where) for entry in flat if isinstance(entry.flat, FlatRecompute)]
    recomputes.sort(key=lambda entry: entry[0].before)  # stable: statements of the same point keep their order
    return Plan(
        tuple(flat for flat, _ in recomputes),
        tuple(where for _, where in recomputes),
        tuple(flat for flat, _ in pages),
        tuple(where for _, where in pages),
    )


def _once(faults: list[ScheduleError]) -> list[ScheduleError]:
    """Return a fault per statement, however many instances follow its plan."""
    alike: dict[tuple[str, str], list[ScheduleError]] = {}
    for fault in faults:
        alike.setdefault((fault.code, fault.where), []).append(fault)
    unique: list[ScheduleError] = []
    for (code, where), same in alike.items():
        several = len({fault.message for fault in same})
        more = f" (the same in {several - 1:,} more instances)" if several > 1 else ""
        unique.append(ScheduleError(code, same[0].message + more, where, same[0].hint))
    return unique


def _stated(
    schedule: Schedule, places: Iterable[InstanceSpan], faults: list[ScheduleError]
) -> list[tuple[str, str, tuple[Statement, ...]]]:
    """Return the plans of all instances, outer ones first: prefix of their ids, JSON pointer, statements.

    Faults are added to `faults`.
    """
    stated = [("", "/statements", schedule.statements)]
    for place in places:  # enclosing places come first
        try:
            statements = place.plan()
        except ScheduleError as fault:
            faults.append(fault)
            if len(faults) >= MAX_FAULTS:
                break
            continue
        pointer = f"/blocks/{escape(place.block_name)}/plans/{escape(place.instance.plan)}"
        stated.append((place.id + ".", pointer, statements))
    return stated


def stated_splits(schedule: Schedule, places: Iterable[InstanceSpan]) -> list[StatedSplit]:
    """Return the splits of all plans in use, outer ones first."""
    return [
        StatedSplit(tuple(prefix + name for name in statement.split), statement.into, f"{where}/{at}")
        for prefix, where, statements in _stated(schedule, places, [])
        for at, statement in enumerate(statements)
        if isinstance(statement, Split)
    ]


def tiles_by_id(operations: Mapping[str, int]) -> dict[str, list[int]]:
    """Return by id of each split operation the operations that it became. operations: index by id."""
    tiles: dict[str, list[int]] = {}
    for name, index in operations.items():
        whole, separator, _ = name.partition(TILE)
        if separator:
            tiles.setdefault(whole, []).append(index)
    return {name: sorted(separator) for name, separator in tiles.items()}


def _items(graph: Graph, flat: FlatRecompute | FlatPage) -> int:
    return len(graph.operations[flat.op].args) if isinstance(flat, FlatRecompute) else 1


def _check_size(stated: Iterable[tuple[str, str, tuple[Statement, ...]]]) -> None:
    """Check how much the plans of all instances name (R072). What they name may be empty."""
    names, known = 0, dict[str, int]()
    for _, where, recomputes in stated:
        if where not in known:
            known[where] = len(recomputes) + sum(len(named(entry)) for entry in recomputes)
        names += known[where]
        if names > MAX_RECOMPUTES:
            raise ScheduleError(
                "R072", f"plans that name over {MAX_RECOMPUTES} recomputations and pages in all instances", where
            )


def _recomputes(statement: Recompute, names: _Names, where: str) -> list[Stated]:
    point = names.point(statement.before, "R044", f"{where}/before")
    graph, stated = names.graph, list[Stated]()
    for at, name in enumerate(statement.recompute):
        here, full = f"{where}/recompute/{at}", names.prefix + name
        if full in names.operations:
            stated.append(Stated(FlatRecompute(names.operations[full], point), here))
        elif full in names.instances or full in names.tiles:
            inside = names.tiles[full] if full in names.tiles else names.instances[full].forward
            if full in names.tiles:
                inside = [op for op in inside if op < graph.backward_start] or inside
            stated += [Stated(FlatRecompute(op, point), here) for op in inside if not graph.operations[op].view]
            if len(stated) > MAX_RECOMPUTES:
                raise ScheduleError("R072", f"over {MAX_RECOMPUTES} recomputations", f"{where}/recompute")
        else:
            raise ScheduleError("R041", f"{name[:120]!r} is no operation or instance here", here, names.meant(name))
    check_recomputes(graph, (entry.flat for entry in stated if isinstance(entry.flat, FlatRecompute)))
    return stated


def _pages(statement: Page, names: _Names, where: str) -> list[Stated]:
    points = {
        field: names.point(point, "R049", f"{where}/{field}")
        for field in ("out", "gone", "back")
        if (point := getattr(statement, field))
    }
    stated: list[Stated] = []
    for at, name in enumerate(statement.page):
        here = f"{where}/page/{at}"
        for value in _values(name, names, here):
            page = FlatPage(value, statement.to, **points)
            try:
                check_page(names.graph, page, names.held)
            except ScheduleError as fault:
                raise ScheduleError(fault.code, fault.message, here, fault.hint) from None
            stated.append(Stated(page, here))
        if len(stated) > MAX_RECOMPUTES:
            raise ScheduleError("R072", f"over {MAX_RECOMPUTES} pages", f"{where}/page")
    return stated


def _values(name: str, names: _Names, where: str) -> list[int]:
    """Return the values of a name: an output, the outputs of an operation, or those of an instance that can leave.

    If none can leave, the result is a single one of them, which the caller refuses with the reason.
    """
    graph, (operation, colon, number) = names.graph, (names.prefix + name).partition(":")
    if not colon and operation in names.instances:
        values = [v for op in names.instances[operation].forward for v in graph.operations[op].writes if v is not None]
        return [value for value in values if not stays(graph, value, names.held)]
    if not colon and operation in names.tiles:
        tiles = [v for op in names.tiles[operation] for v in graph.operations[op].writes if v is not None]
        return [value for value in tiles if not stays(graph, value, names.held)] or tiles[:1]
    if operation not in names.operations:
        given = takewhile(lambda number: graph.values[number].producer < 0, range(len(graph.values)))
        if (source := next((number for number in given if graph.values[number].name == operation), None)) is not None:
            return [source]
        raise ScheduleError("R047", f"{name[:120]!r} is no value or instance here", where, names.meant(name))
    op = graph.operations[names.operations[operation]]
    values = [value for value in op.writes if value is not None]
    if colon:
        full = f"{operation}:{int(number)}"
        values = [value for value in values if graph.values[value].name == full]
        if not values:
            outputs = ", ".join(graph.values[v].name.removeprefix(names.prefix) for v in op.writes if v is not None)
            raise ScheduleError("R047", f"{name[:120]!r} is no output", where, f"write {outputs}")
    return [value for value in values if not stays(graph, value, names.held)] or values[:1]


def _nothing(statement: Split, names: _Names, where: str) -> list[Stated]:
    return []  # `split_by_plan` has applied it


# How to convert a statement, by its type (`format.schedule.STATEMENTS`).
_MEANING: Mapping[type, Callable[..., list[Stated]]] = {
    Recompute: _recomputes,
    Page: _pages,
    Split: _nothing,
}
