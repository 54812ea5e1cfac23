"""Plans of a schedule file -> flat reruns over operation indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec

from ..errors import ScheduleError, ScheduleFaultsError
from ..format.limits import MAX_FAULTS, MAX_ITEMS, MAX_RERUNS
from ..format.schedule import KEEP_ALL, Rerun, Schedule, Statement
from ..format.signature import escape
from ..format.suggest import did_you_mean
from .graph import FlatRerun, Graph
from .layout import InstanceSpan
from .rerun_rules import check_reruns


class Stated(msgspec.Struct, frozen=True):
    """A rerun, and the JSON pointer of its name in the file."""

    rerun: FlatRerun
    where: str


def flat_reruns(
    schedule: Schedule, places: list[InstanceSpan], graph: Graph, operations: Mapping[str, int]
) -> tuple[Stated, ...]:
    """Reruns in execution order (see `expand`). operations: full id -> index. Raise ScheduleError R04x."""
    instances = {place.id: place for place in places}
    stated = [("", "/statements", schedule.statements)]
    faults: list[ScheduleError] = []
    for name, block in schedule.blocks.items():
        if block.plans.get(KEEP_ALL):
            where = f"/blocks/{escape(name)}/plans/{KEEP_ALL}"
            faults.append(ScheduleError("R046", "keep-all is the plan without reruns", where, "choose another name"))
    for place in places:  # enclosing places come first
        try:
            reruns = place.plan()
        except ScheduleError as fault:
            faults.append(fault)
            if len(faults) >= MAX_FAULTS:
                break
            continue
        pointer = f"/blocks/{escape(place.block_name)}/plans/{escape(place.instance.plan)}"
        stated.append((place.id + ".", pointer, reruns))
    _check_size(stated)
    flat: list[Stated] = []
    items = 0
    for prefix, where, reruns in stated:
        for at, rerun in enumerate(reruns):
            try:
                found = _MEANING[type(rerun)](rerun, prefix, graph, instances, operations, f"{where}/{at}")
                check_reruns(graph, (one.rerun for one in found))
                items += sum(len(graph.operations[one.rerun.op].args) for one in found)
                flat += found
            except ScheduleError as fault:
                faults.append(ScheduleError(fault.code, fault.message, fault.where or f"{where}/{at}", fault.hint))
            if len(flat) > MAX_RERUNS or items > MAX_ITEMS or len(faults) >= MAX_FAULTS:
                break  # a small file can state very many
        if len(flat) > MAX_RERUNS:
            raise ScheduleError("R072", f"over {MAX_RERUNS} reruns", where)
        if items > MAX_ITEMS:
            raise ScheduleError("R072", f"reruns of operations with over {MAX_ITEMS} arguments in all", where)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        unique = list({(f.code, f.where, f.message): f for f in faults}.values())
        raise unique[0] if len(unique) == 1 else ScheduleFaultsError(unique)
    return tuple(sorted(flat, key=lambda one: one.rerun.before))  # stable: the order of statement within a point


def _check_size(stated: Iterable[tuple[str, str, tuple[Statement, ...]]]) -> None:
    """Raise ScheduleError R072 where the plans that instances follow name very much: what is named may be empty."""
    names, known = 0, dict[str, int]()
    for _, where, reruns in stated:
        if where not in known:
            known[where] = len(reruns) + sum(len(one.rerun) for one in reruns)
        names += known[where]
        if names > MAX_RERUNS:
            raise ScheduleError("R072", f"plans that name over {MAX_RERUNS} reruns in all instances", where)


def _flatten(
    rerun: Rerun,
    prefix: str,
    graph: Graph,
    instances: Mapping[str, InstanceSpan],
    operations: Mapping[str, int],
    where: str,
) -> list[Stated]:
    point = operations.get(prefix + rerun.before)
    if point is None and prefix + rerun.before in instances:
        backward = instances[prefix + rerun.before].backward
        point = backward.start if backward else None
    if point is None and prefix + rerun.before in instances:
        message = f"the instance {rerun.before[:120]!r} has no backward"
        raise ScheduleError("R044", message, f"{where}/before", "name an operation")
    if point is None:
        hint = _meant(rerun.before, prefix, operations, instances)
        raise ScheduleError("R044", f"{rerun.before[:120]!r} is no operation or instance here", f"{where}/before", hint)
    found: list[Stated] = []
    for at, name in enumerate(rerun.rerun):
        here = f"{where}/rerun/{at}"
        if prefix + name in operations:
            found.append(Stated(FlatRerun(operations[prefix + name], point), here))
        elif prefix + name in instances:
            inside = instances[prefix + name].forward
            found += [Stated(FlatRerun(op, point), here) for op in inside if not graph.operations[op].view]
            if len(found) > MAX_RERUNS:
                raise ScheduleError("R072", f"over {MAX_RERUNS} reruns", f"{where}/rerun")
        else:
            hint = _meant(name, prefix, operations, instances)
            raise ScheduleError("R041", f"{name[:120]!r} is no operation or instance here", here, hint)
    return found


def _meant(name: str, prefix: str, operations: Mapping[str, int], instances: Mapping[str, InstanceSpan]) -> str:
    known = (n[len(prefix) :] for n in chain(operations, instances) if n.startswith(prefix))
    return did_you_mean(name, known, "name an operation by its id")


# What a statement stands for, by its kind (`format.schedule.STATEMENTS`).
_MEANING: Mapping[type, Callable[..., list[Stated]]] = {Rerun: _flatten}
