"""Plans of a schedule file -> flat recomputations over operation indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec

from ..errors import ScheduleError, ScheduleFaultsError
from ..format.limits import MAX_FAULTS, MAX_ITEMS, MAX_RECOMPUTES
from ..format.schedule import BASELINE, Recompute, Schedule, Statement
from ..format.signature import escape
from ..format.suggest import did_you_mean
from .graph import FlatRecompute, Graph
from .layout import InstanceSpan
from .recompute_rules import check_recomputes


class Stated(msgspec.Struct, frozen=True):
    """A recomputation, and the JSON pointer of its name in the file."""

    recompute: FlatRecompute
    where: str


def flat_recomputes(
    schedule: Schedule, places: list[InstanceSpan], graph: Graph, operations: Mapping[str, int]
) -> tuple[Stated, ...]:
    """Recomputations in execution order (see `expand`). operations: full id -> index. Raise ScheduleError R04x."""
    instances = {place.id: place for place in places}
    stated = [("", "/statements", schedule.statements)]
    faults: list[ScheduleError] = []
    for name, block in schedule.blocks.items():
        if block.plans.get(BASELINE):
            where = f"/blocks/{escape(name)}/plans/{BASELINE}"
            faults.append(
                ScheduleError("R046", "baseline is the plan without recomputation", where, "choose another name")
            )
    for place in places:  # enclosing places come first
        try:
            recomputes = place.plan()
        except ScheduleError as fault:
            faults.append(fault)
            if len(faults) >= MAX_FAULTS:
                break
            continue
        pointer = f"/blocks/{escape(place.block_name)}/plans/{escape(place.instance.plan)}"
        stated.append((place.id + ".", pointer, recomputes))
    _check_size(stated)
    flat: list[Stated] = []
    items = 0
    for prefix, where, recomputes in stated:
        for at, recompute in enumerate(recomputes):
            try:
                found = _MEANING[type(recompute)](recompute, prefix, graph, instances, operations, f"{where}/{at}")
                check_recomputes(graph, (one.recompute for one in found))
                items += sum(len(graph.operations[one.recompute.op].args) for one in found)
                flat += found
            except ScheduleError as fault:
                faults.append(ScheduleError(fault.code, fault.message, fault.where or f"{where}/{at}", fault.hint))
            if len(flat) > MAX_RECOMPUTES or items > MAX_ITEMS or len(faults) >= MAX_FAULTS:
                break  # a small file can state very many
        if len(flat) > MAX_RECOMPUTES:
            raise ScheduleError("R072", f"over {MAX_RECOMPUTES} recomputations", where)
        if items > MAX_ITEMS:
            raise ScheduleError("R072", f"recomputations of operations with over {MAX_ITEMS} arguments in all", where)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        unique = list({(f.code, f.where, f.message): f for f in faults}.values())
        raise unique[0] if len(unique) == 1 else ScheduleFaultsError(unique)
    return tuple(sorted(flat, key=lambda one: one.recompute.before))  # stable: the order of statement within a point


def _check_size(stated: Iterable[tuple[str, str, tuple[Statement, ...]]]) -> None:
    """Raise ScheduleError R072 where the plans that instances follow name very much: what is named may be empty."""
    names, known = 0, dict[str, int]()
    for _, where, recomputes in stated:
        if where not in known:
            known[where] = len(recomputes) + sum(len(one.recompute) for one in recomputes)
        names += known[where]
        if names > MAX_RECOMPUTES:
            raise ScheduleError("R072", f"plans that name over {MAX_RECOMPUTES} recomputations in all instances", where)


def _flatten(
    recompute: Recompute,
    prefix: str,
    graph: Graph,
    instances: Mapping[str, InstanceSpan],
    operations: Mapping[str, int],
    where: str,
) -> list[Stated]:
    point = operations.get(prefix + recompute.before)
    if point is None and prefix + recompute.before in instances:
        backward = instances[prefix + recompute.before].backward
        point = backward.start if backward else None
    if point is None and prefix + recompute.before in instances:
        message = f"the instance {recompute.before[:120]!r} has no backward"
        raise ScheduleError("R044", message, f"{where}/before", "name an operation")
    if point is None:
        hint = _meant(recompute.before, prefix, operations, instances)
        raise ScheduleError(
            "R044", f"{recompute.before[:120]!r} is no operation or instance here", f"{where}/before", hint
        )
    found: list[Stated] = []
    for at, name in enumerate(recompute.recompute):
        here = f"{where}/recompute/{at}"
        if prefix + name in operations:
            found.append(Stated(FlatRecompute(operations[prefix + name], point), here))
        elif prefix + name in instances:
            inside = instances[prefix + name].forward
            found += [Stated(FlatRecompute(op, point), here) for op in inside if not graph.operations[op].view]
            if len(found) > MAX_RECOMPUTES:
                raise ScheduleError("R072", f"over {MAX_RECOMPUTES} recomputations", f"{where}/recompute")
        else:
            hint = _meant(name, prefix, operations, instances)
            raise ScheduleError("R041", f"{name[:120]!r} is no operation or instance here", here, hint)
    return found


def _meant(name: str, prefix: str, operations: Mapping[str, int], instances: Mapping[str, InstanceSpan]) -> str:
    known = (n[len(prefix) :] for n in chain(operations, instances) if n.startswith(prefix))
    return did_you_mean(name, known, "name an operation by its id")


# What a statement stands for, by its kind (`format.schedule.STATEMENTS`).
_MEANING: Mapping[type, Callable[..., list[Stated]]] = {Recompute: _flatten}
