"""The expansion of a schedule at a second size, from its expansion at a first one.

Names, bindings and plans are equal at all sizes of a file. Types, literals and workspaces differ, and these only where
the lines of the blocks differ; so lines are compared once for each block, not for each of its instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..errors import ScheduleError
from ..format.distributed_check import gradient_shapes
from ..format.schedule import Block, Operation, Schedule
from ..format.signature import input_leaves, output_leaves
from ..format.tensor_type import TensorType, parse_type
from .arguments import to_graph
from .expansion import Expanded
from .graph import Op, Value
from .type_rules import no_gradient_of, no_update_of, not_as_declared, too_large


class _Difference(NamedTuple):
    """How a line of a block differs from the same line at the first size.

    Attributes:
        at: Its number in forward or backward.
        types: The types of its results.
        args: Its changed positional arguments.
        kwargs: Its changed keyword arguments.
        workspace: Its workspace.
    """

    at: int
    types: tuple[TensorType | None, ...]
    args: dict[int, Any]
    kwargs: dict[str, Any]
    workspace: int


_Differences = tuple[list[_Difference], list[_Difference]]  # of forward and of backward


def resized(before: Expanded, schedule: Schedule) -> Expanded | None:
    """Return what `expand` returns.

    Args:
        before: The expansion of the same file at another size.
        schedule: The schedule at this size (`at_size`).

    Returns:
        The expansion; None if `expand` has to decide: it has pages or splits, or a fault.
    """
    if before.pages or before.splits:
        return None
    try:
        differences = {
            place.block_name: _differences(place.block, schedule.blocks[place.block_name])
            for place in {place.block_name: place for place in before.places}.values()
        }
        values = _values(before, schedule, differences)
    except ScheduleError:
        return None
    operations = _operations(before, differences)
    if not _legal(before, schedule, values, operations):
        return None
    graph = replace(before.graph, values=tuple(values), operations=tuple(operations))
    places = tuple(replace(place, block=schedule.blocks[place.block_name]) for place in before.places)
    return replace(before, graph=graph, unsplit=graph, places=places)


def _differences(was: Block, now: Block) -> _Differences:
    return list(_different(was.forward, now.forward)), list(_different(was.backward, now.backward))


def _different(was: Iterable[Operation], now: Iterable[Operation]) -> Iterable[_Difference]:
    for at, (old, new) in enumerate(zip(was, now, strict=True)):
        if old != new:
            outs = (new.out,) if isinstance(new.out, str) else new.out
            types = tuple(None if text is None else parse_type(text) for text in outs)
            args = _changed(dict(enumerate(old.args)), dict(enumerate(new.args)))
            yield _Difference(at, types, args, _changed(old.kwargs, new.kwargs), int(new.workspace))


def _changed(was: Mapping[Any, object], now: Mapping[Any, object]) -> dict[Any, Any]:
    """Return the changed arguments. Raises ScheduleError if one contains values beside sizes."""
    return {key: to_graph(given, {}, {}, []) for key, given in now.items() if given != was[key]}


def _values(before: Expanded, schedule: Schedule, differences: Mapping[str, _Differences]) -> list[Value]:
    values, operations = list(before.graph.values), before.graph.operations

    def retype(at: int, type_: TensorType) -> None:
        value = values[at]
        values[at] = Value(value.name, type_, value.kind, value.producer, value.data)

    for at, leaf in enumerate(input_leaves(schedule.model.inputs)):  # they are the first values
        retype(at, parse_type(leaf.text))
    for place in before.places:
        for span, lines in zip((place.forward, place.backward), differences[place.block_name], strict=True):
            for line in lines:
                for value, type_ in zip(operations[span[line.at]].writes, line.types, strict=True):
                    if value is not None and type_ is not None:
                        retype(value, type_)
    returned = {values[at].name: at for at in before.graph.outputs}
    outputs = {f"grad.{leaf.name}": returned.get(leaf.text[1:]) for leaf in output_leaves(schedule.model.outputs)}
    for at, value in enumerate(values):
        if value.kind == "tangent" and (of := outputs[value.name]) is not None:
            retype(at, parse_type(str(values[of].type.dense)))
    return values


def _operations(before: Expanded, differences: Mapping[str, _Differences]) -> list[Op]:
    operations = list(before.graph.operations)
    for place in before.places:
        for span, lines in zip((place.forward, place.backward), differences[place.block_name], strict=True):
            for line in lines:
                op = operations[span[line.at]]
                if line.args or line.kwargs or line.workspace != op.workspace:
                    operations[span[line.at]] = _resized(op, line)
    return operations


def _resized(op: Op, line: _Difference) -> Op:
    args = tuple(line.args.get(at, given) for at, given in enumerate(op.args)) if line.args else op.args
    kwargs = {**op.kwargs, **line.kwargs} if line.kwargs else op.kwargs
    return Op(
        op.id,
        op.op,
        args,
        kwargs,
        op.reads,
        op.writes,
        op.multiple,
        op.view,
        op.random,
        op.ns,
        line.workspace,
        op.source,
    )


def _legal(before: Expanded, schedule: Schedule, values: list[Value], operations: list[Op]) -> bool:
    """Return whether the rules for types hold. All others do not depend on sizes."""
    shapes, graph = gradient_shapes(schedule.model), before.graph
    declared = {name: {**block.inputs, **block.parameters, **block.buffers} for name, block in schedule.blocks.items()}
    return (
        all(
            not_as_declared(values[value], parse_type(declared[block][name])) is None
            for value, block, name in before.bound
        )
        and all(no_gradient_of(values[source], values[value], shapes) is None for source, value in graph.gradients)
        and all(no_update_of(values[buffer], values[new]) is None for buffer, new in graph.updates)
        and too_large(values, operations) is None
    )
