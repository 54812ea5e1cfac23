"""Operations of a step that need a check of their own, if the step has been checked at another size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..flat_step.graph import Graph, Number, Op, Ref, planned_number
from ..format.json_values import is_tuple
from ..torch_private.operators import OpOverload
from .unchecked import may_trust


class CheckedStep(NamedTuple):
    """A step of a schedule without splits, after its checks at a size.

    Attributes:
        operators: The live operator of every name.
        distinct: Operations, one for each line and types of its values: these decide the inference of its types.
        trusting: Operations whose kernels may trust their arguments, one for each line, types, and lines and types of
            those that produced its values.
    """

    operators: Mapping[str, OpOverload]
    distinct: tuple[int, ...]
    trusting: tuple[int, ...]

    @classmethod
    def of(
        cls, graph: Graph, where: Sequence[str], types: Sequence[int], operators: Mapping[str, OpOverload]
    ) -> CheckedStep:
        """Compare the operations of a step.

        Args:
            graph: The step at the size at which it was checked.
            where: JSON pointer of the line of every operation.
            types: For each value, the number of its type (`Resizing.types`).
            operators: The live operator of every name.
        """
        numbers: dict[Any, int] = {}  # by line and types, the first operation
        first = [
            numbers.setdefault((at, *_decided(graph, op, types)), index)
            for index, (op, at) in enumerate(zip(graph.operations, where, strict=True))
        ]
        producers = [value.producer for value in graph.values]
        trusting: dict[Any, int] = {}
        for index, op in enumerate(graph.operations):
            if may_trust(op.op):
                made = (producers[value] for value in op.reads)
                key = first[index], *(first[by] if by >= 0 else -1 for by in made)
                trusting.setdefault(key, index)
        return cls(operators, tuple(numbers.values()), tuple(trusting.values()))


def _decided(graph: Graph, op: Op, types: Sequence[int]) -> Iterator[object]:
    """Yield what differs between operations of a line and decides the inference of types."""
    given: list[object] = [*op.args, *op.kwargs.values()]
    while given:
        argument = given.pop()
        if is_tuple(argument):
            given.extend(argument)
        elif isinstance(argument, Ref):
            yield types[argument.value]
        elif isinstance(argument, Number):
            yield planned_number(graph, argument)
    yield from (None if value is None else types[value] for value in op.writes)
