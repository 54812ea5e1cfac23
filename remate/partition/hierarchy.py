"""The hierarchy of a training step: a tree of parts. Each part has a contiguous range of the forward and of the
backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from remate_runtime.flat_step import Graph
from remate_runtime.format import spelled

from ..capture.captured import Captured


class BlockSpan(msgspec.Struct, frozen=True):
    """A node of the tree. A leaf contains operations, a composite contains parts.

    Attributes:
        id: Full id of the instance in the schedule file.
        prefix: Module path that parameters and operations are named relative to ("" is the model itself).
        label: Name of its template in the file (mostly a class name).
        forward: Index range [start, stop) in the reordered graph.
        backward: Index range [start, stop) in the reordered graph.
        parts: Parts of a composite, in forward order.
    """

    id: str
    prefix: str
    label: str
    forward: tuple[int, int]
    backward: tuple[int, int]
    parts: tuple[BlockSpan, ...] = ()

    def leaves(self) -> Iterator[BlockSpan]:
        """Yield the leaves below (or the part itself), in forward order."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


class SizedStep(msgspec.Struct, frozen=True):
    """A step for a range of sizes, in block order.

    Attributes:
        generic: The step with expressions of named sizes in its types and arguments. It can be written, not run.
        trace_samples: Sizes at which the step was captured, each with its graph.
        said: How the range was narrowed, one text per change.
        given: Names of the sizes whose least number the caller requested; that of the others may be raised.
    """

    generic: Captured
    trace_samples: tuple[tuple[dict[str, int], Graph], ...]
    said: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()


class Hierarchy(msgspec.Struct, frozen=True):
    """A captured step in block order, and its tree of blocks.

    Attributes:
        captured: The step with its backward operations in block order.
        parts: The top level, in forward order.
        order: For each operation of `captured`, its index in the step that was partitioned.
        sized: The same for other sizes.
        price: Adds costs to the operations of a graph, as those of the step got theirs.
    """

    captured: Captured
    parts: tuple[BlockSpan, ...]
    order: tuple[int, ...]
    sized: SizedStep | None = None
    price: Callable[[Graph], Graph] | None = None

    @property
    def planned(self) -> str:
        """Return the planned sizes of a step for a range of sizes, as `b=4, t=64`; "" for a step of one size."""
        dims = self.sized.generic.model.dims if self.sized else {}
        return spelled({name: dim.planned for name, dim in dims.items()})

    def leaves(self) -> Iterator[BlockSpan]:
        for part in self.parts:
            yield from part.leaves()


def whole(captured: Captured, name: str = "model") -> Hierarchy:
    """Return the trivial hierarchy: one leaf with every operation, in captured order."""
    graph, count = captured.graph, len(captured.graph.operations)
    label = captured.classes.get("", "") or captured.model.name or name
    leaf = BlockSpan(name, "", label, (0, graph.backward_start), (graph.backward_start, count))
    return Hierarchy(captured, (leaf,), tuple(range(count)))
