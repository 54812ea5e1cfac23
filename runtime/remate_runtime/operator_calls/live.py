"""The live operators of a step, checked against the file and the static tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..errors import ScheduleError, ScheduleFaultsError
from ..flat_step.graph import Graph
from ..format.limits import MAX_FAULTS
from ..operators.tables import permission
from ..torch_private.operators import OpOverload
from .inferred import check_types
from .lines import CheckedStep
from .overloads import check_operator, not_permitted, overload
from .unchecked import trusts


def operators(
    graph: Graph,
    where: Sequence[str],
    namespaces: Collection[str] = (),
    checked: CheckedStep | None = None,
) -> dict[str, OpOverload]:
    """Return the live operator of every name in the graph, and check all result types against what torch infers.

    Args:
        graph: The step.
        where: JSON pointer of every operation (`Expanded.where`).
        namespaces: Permitted namespaces of libraries, and operators of torch that need a permission.
        checked: The step at another size. Names, and numbers of arguments and results, are equal at all sizes, so that
            only types are checked, and these once for each line and types.

    Raises:
        ScheduleError: R050–R053, with all faults.
    """
    operators_by_name = {} if checked is None else dict(checked.operators)
    numbers = range(len(where)) if checked is None else checked.trusting
    every = ((graph.operations[number], where[number]) for number in numbers)
    known: dict[Any, str] = {}
    faults: dict[str, ScheduleError] = {}  # by pointer, because the instances of a block share its operations' lines
    for op, at in every:
        try:
            if op.op not in operators_by_name:
                operators_by_name[op.op] = overload(op.op, namespaces)
        except ScheduleError as fault:
            faults[at] = ScheduleError(fault.code, fault.message, f"{at}/op", fault.hint)
        else:
            try:
                if checked is None:
                    check_operator(op, operators_by_name[op.op])
                if op.op not in namespaces and (
                    why := trusts(graph, op, operators_by_name[op.op], known, checked is not None)
                ):
                    raise not_permitted(f"operation {op.id!r}, {op.op}: {why}", op.op)
            except ScheduleError as fault:
                faults[at] = ScheduleError(fault.code, fault.message, at, fault.hint)
        if len(faults) >= MAX_FAULTS:
            break
    faults = faults or check_types(graph, where, operators_by_name, None if checked is None else checked.distinct)
    if faults:
        raise ScheduleFaultsError(faults.values()) if len(faults) > 1 else next(iter(faults.values()))
    return operators_by_name


def needed(graph: Graph) -> tuple[str, ...]:
    """Return what `namespaces` of a file with these operations must list, and whoever applies it must permit.

    These are namespaces of libraries, and operators of torch whose kernels would trust the file's arguments.
    """
    wanted: set[str] = set()
    known: dict[Any, str] = {}
    for op in graph.operations:
        name = permission(op.op)
        if not name and trusts(graph, op, overload(op.op), known):
            name = op.op
        if name:
            wanted.add(name)
    return tuple(sorted(wanted))
