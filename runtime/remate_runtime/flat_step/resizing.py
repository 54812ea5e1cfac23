"""The expansions of a schedule at many sizes, from its expansion at a first one.

Names, bindings and plans are equal at all sizes of a file. Types, literals and workspaces differ, and these only where
the lines of the blocks differ. So lines are compared, types parsed and rules checked once for each block, not for each
of its instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..errors import ScheduleError
from ..format.distributed_check import gradient_shapes
from ..format.json_values import Json
from ..format.schedule import Block, Operation, Schedule
from ..format.signature import Leaf, input_leaves, output_leaves
from ..format.tensor_type import TensorType, parse_type
from .arguments import to_graph
from .expansion import Expanded
from .graph import Graph, Op, Value
from .layout import InstanceSpan
from .type_rules import no_gradient_of, no_update_of, not_as_declared, too_large


class Resizing:
    """Expands a schedule at other sizes than a first one.

    Attributes:
        types: For each value, the number of its type. Values of equal numbers have equal types at every size.
    """

    def __init__(self, schedule: Schedule, first: Expanded) -> None:
        """Compare what instances share.

        Args:
            schedule: The schedule at the first size (`at_size`).
            first: Its expansion, without splits.
        """
        self._first, self._shapes = first, gradient_shapes(schedule.model)
        graph, self._lines = first.graph, _lines(first)
        self._tangents = _tangents(schedule, graph)
        self.types = _type_numbers(graph, self._lines, self._tangents)
        self._given = dict(zip(self.types, (value.type for value in graph.values), strict=True))
        self._counts = Counter(self.types)
        about = ((value.name, value.kind, value.producer, value.data) for value in graph.values)
        self._names, self._kinds, self._producers, self._data = zip(*about, strict=True)
        self._workspace = sum(op.workspace for op in graph.operations)
        self._ns = sum(op.ns for op in graph.operations)
        # Checks of types, one for all instances of a block.
        self._bound = {(self.types[value], block, name): value for value, block, name in first.bound}
        self._gradients = self._distinct(graph.gradients)
        self._updates = self._distinct(graph.updates)

    def _distinct(self, pairs: Iterable[tuple[int, int]]) -> Collection[tuple[int, int]]:
        """Return one pair of values for each pair of types. Sources whose gradients have other shapes stay."""
        names = {at: value.name for at, value in enumerate(self._first.graph.values) if value.name in self._shapes}
        return {(self.types[one], self.types[other], names.get(one)): (one, other) for one, other in pairs}.values()

    def at(self, schedule: Schedule) -> Expanded | None:
        """Return what `expand` returns.

        Args:
            schedule: The schedule at a size (`at_size`).

        Returns:
            The expansion; None if `expand` has to decide: it has pages, or a fault.
        """
        if self._first.pages:
            return None
        try:
            differences = [difference for line in self._lines if (difference := line.difference(schedule.blocks))]
            values = self._values(schedule, differences)
        except ScheduleError:
            return None
        operations = _operations(self._first.graph, differences)
        if not self._legal(schedule, values, differences):
            return None
        graph = replace(self._first.graph, values=values, operations=operations)
        places = tuple(replace(place, block=schedule.blocks[place.block_name]) for place in self._first.places)
        return replace(self._first, graph=graph, unsplit=graph, places=places)

    def _values(self, schedule: Schedule, differences: Iterable[_Difference]) -> tuple[Value, ...]:
        types = dict(self._given)
        for at, leaf in enumerate(input_leaves(schedule.model.inputs)):
            types[self.types[at]] = parse_type(leaf.text)
        for difference in differences:
            for value, type_ in difference.types:
                types[self.types[value]] = type_
        for tangent, (output, leaf) in self._tangents.items():
            types[self.types[tangent]] = parse_type(str(leaf.tangent(types[self.types[output]])))
        typed = map(types.__getitem__, self.types)
        return tuple(map(Value, self._names, typed, self._kinds, self._producers, self._data))

    def _legal(self, schedule: Schedule, values: Sequence[Value], differences: Iterable[_Difference]) -> bool:
        """Return whether the rules for types hold. All others do not depend on sizes."""
        declared = {
            name: {**block.inputs, **block.parameters, **block.buffers} for name, block in schedule.blocks.items()
        }
        of_type = dict(zip(self.types, values, strict=True))
        nbytes = sum(count * of_type[number].type.nbytes for number, count in self._counts.items())
        workspace = self._workspace + sum(difference.more_workspace for difference in differences)
        return (
            too_large(nbytes + workspace, self._ns) is None
            and all(
                not_as_declared(values[value], parse_type(declared[block][name])) is None
                for (_, block, name), value in self._bound.items()
            )
            and all(no_gradient_of(values[one], values[other], self._shapes) is None for one, other in self._gradients)
            and all(no_update_of(values[one], values[other]) is None for one, other in self._updates)
        )


class _Difference(NamedTuple):
    """How a line of a block differs from the same line at the first size.

    Attributes:
        operations: The operations of all instances.
        types: The types of its results, each with one value of this type.
        args: Its changed positional arguments.
        kwargs: Its changed keyword arguments.
        workspace: Its workspace.
        more_workspace: The sum of what the workspaces of all instances are larger.
    """

    operations: tuple[int, ...]
    types: list[tuple[int, TensorType]]
    args: dict[int, Any]
    kwargs: dict[str, Any]
    workspace: int
    more_workspace: int


class _Line(NamedTuple):
    """A line of a block.

    Attributes:
        block: The block's name.
        backward: Whether it is in backward.
        at: Its number there.
        first: The line at the first size.
        operations: The operations of all instances.
        results: A value for each of its results; None for a result that the operator does not return.
    """

    block: str
    backward: bool
    at: int
    first: Operation
    operations: tuple[int, ...]
    results: tuple[int | None, ...]

    def difference(self, blocks: Mapping[str, Block]) -> _Difference | None:
        """Return how it differs in the blocks of another size; None if it does not. May raise ScheduleError."""
        block, was = blocks[self.block], self.first
        now = (block.backward if self.backward else block.forward)[self.at]
        if was == now:
            return None
        outs = (now.out,) if isinstance(now.out, str) else now.out
        types = [
            (value, parse_type(text))
            for value, text in zip(self.results, outs, strict=True)
            if value is not None and text is not None
        ]
        args = _changed(dict(enumerate(was.args)), dict(enumerate(now.args)))
        workspace = int(now.workspace)
        more = len(self.operations) * (workspace - int(was.workspace))
        return _Difference(self.operations, types, args, _changed(was.kwargs, now.kwargs), workspace, more)


def _lines(first: Expanded) -> list[_Line]:
    """Return the lines of all blocks that the step uses."""
    instances: dict[str, list[InstanceSpan]] = {}
    for place in first.places:
        instances.setdefault(place.block_name, []).append(place)
    lines: list[_Line] = []
    for name, spans in instances.items():
        block = spans[0].block
        for backward, operations in ((False, block.forward), (True, block.backward)):
            for at, line in enumerate(operations):
                every = tuple((span.backward if backward else span.forward)[at] for span in spans)
                lines.append(_Line(name, backward, at, line, every, first.graph.operations[every[0]].writes))
    return lines


def _tangents(schedule: Schedule, graph: Graph) -> dict[int, tuple[int, Leaf]]:
    """Return by tangent the output that it belongs to, and its leaf."""
    returned = {graph.values[at].name: at for at in graph.outputs}
    leaves = {f"grad.{leaf.name}": leaf for leaf in output_leaves(schedule.model.outputs)}
    tangents = {at: leaves[value.name] for at, value in enumerate(graph.values) if value.kind == "tangent"}
    return {at: (returned[leaf.text[1:]], leaf) for at, leaf in tangents.items() if leaf.text[1:] in returned}


def _type_numbers(graph: Graph, lines: Iterable[_Line], tangents: Iterable[int]) -> tuple[int, ...]:
    """Return `Resizing.types`: equal for one result of a line in all instances, and for equal types of other values.

    Inputs and tangents have numbers of their own.
    """
    keys: list[Any] = [at if value.kind == "input" else value.type for at, value in enumerate(graph.values)]
    for at in tangents:
        keys[at] = at
    for line in lines:
        for at in line.operations:
            for of_first, value in zip(line.results, graph.operations[at].writes, strict=True):
                if value is not None:
                    keys[value] = of_first
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return tuple(map(numbers.__getitem__, keys))


def _changed(was: Mapping[Any, Json], now: Mapping[Any, Json]) -> dict[Any, Any]:
    """Return the changed arguments. Raises ScheduleError if one contains values beside sizes."""
    return {key: to_graph(given, {}, {}, []) for key, given in now.items() if given != was[key]}


def _operations(graph: Graph, differences: Iterable[_Difference]) -> tuple[Op, ...]:
    operations = list(graph.operations)
    for line in differences:
        first = operations[line.operations[0]]
        if line.args or line.kwargs:
            for at in line.operations:
                op = operations[at]
                args, kwargs = list(op.args), {**op.kwargs, **line.kwargs} if line.kwargs else op.kwargs
                for position, argument in line.args.items():
                    args[position] = argument
                operations[at] = replace(op, args=tuple(args), kwargs=kwargs, workspace=line.workspace)
        elif line.workspace != first.workspace:
            for at in line.operations:
                operations[at] = replace(operations[at], workspace=line.workspace)
    return tuple(operations)
