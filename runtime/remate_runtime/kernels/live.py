"""The live operators of a step, every one checked against what the file and the static tables say of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch._ops import OpOverload

from ..errors import ScheduleError, ScheduleFaultsError
from ..format.limits import MAX_FAULTS
from ..step.graph import Graph
from .overloads import check_operator, overload


def operators(graph: Graph, where: Sequence[str], namespaces: Collection[str] = ()) -> dict[str, OpOverload]:
    """The live operator of every name in the graph. where: JSON pointer of every operation (`Expanded.where`).

    Raises ScheduleError R050–R053, with all faults.
    """
    found: dict[str, OpOverload] = {}
    faults: dict[str, ScheduleError] = {}  # by pointer: the instances of a block share its operations' lines
    for op, at in zip(graph.operations, where, strict=True):
        try:
            if op.op not in found:
                found[op.op] = overload(op.op, namespaces)
        except ScheduleError as fault:
            faults[at] = ScheduleError(fault.code, fault.message, f"{at}/op", fault.hint)
        else:
            try:
                check_operator(op, found[op.op])
            except ScheduleError as fault:
                faults[at] = ScheduleError(fault.code, fault.message, at, fault.hint)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        raise ScheduleFaultsError(faults.values()) if len(faults) > 1 else next(iter(faults.values()))
    return found
