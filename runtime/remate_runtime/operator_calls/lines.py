"""Operations of a step that need a check of their own, if the step has been checked at another size."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..flat_step.graph import Graph, Number, Op, Ref
from ..torch_private.operators import OpOverload


class CheckedStep(NamedTuple):
    """A step of a schedule without splits, after its checks at a size.

    Attributes:
        operators: The live operator of every name.
        values: For each operation, a getter of its entries in a list of all values: those that it reads and writes.
            None if these and its line do not decide the inference of its types.
    """

    operators: Mapping[str, OpOverload]
    values: tuple[operator.itemgetter[Any] | None, ...]

    @classmethod
    def of(cls, graph: Graph, operators: Mapping[str, OpOverload]) -> CheckedStep:
        return cls(operators, tuple(map(_values, graph.operations)))

    def distinct(self, graph: Graph, where: Sequence[str]) -> Iterator[tuple[Op, str]]:
        """Yield one operation, with its pointer, for each pointer and types.

        Args:
            graph: The step at this size.
            where: JSON pointer of every operation.
        """
        types = [id(value.type) for value in graph.values]  # shorter to compare than types
        seen: set[Any] = set()
        for op, at, values in zip(graph.operations, where, self.values, strict=True):
            if values is not None:
                line = at, values(types)
                if line in seen:
                    continue
                seen.add(line)
            yield op, at


def _values(op: Op) -> operator.itemgetter[Any] | None:
    read: list[int] = []
    for argument in op.args:
        if type(argument) is Ref:
            read.append(argument.value)
        elif type(argument) is Number:
            return None
    if tuple(read) != op.reads or any(type(argument) is Number for argument in op.kwargs.values()):
        return None  # values twice or in lists
    values = [*read, *(value for value in op.writes if value is not None)]
    return operator.itemgetter(*values) if values else None
