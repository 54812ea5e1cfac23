"""The hierarchy of a training step: a tree of parts, each a contiguous range of the forward and one of the backward."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from remate_runtime.flat_step import Graph
from remate_runtime.format import spelled

from ..capture.captured import Captured


class BlockSpan(msgspec.Struct, frozen=True):
    """One node of the tree: a leaf holds operations, a composite holds parts (in forward order).

    id: full id of the instance, as the schedule file will name it. prefix: module path against which parameters and
    operations are named ("" = the model itself). label: what the file calls its template (a class name, mostly).
    forward, backward: index ranges [start, stop) in the reordered graph.
    """

    id: str
    prefix: str
    label: str
    forward: tuple[int, int]
    backward: tuple[int, int]
    parts: tuple[BlockSpan, ...] = ()

    def leaves(self) -> Iterator[BlockSpan]:
        """The leaves below (or the part itself), in forward order."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


class SizedStep(msgspec.Struct, frozen=True):
    """A step for a range of sizes, in block order.

    generic: expressions of named sizes stand in its types and arguments, so it can be written down, and not be run.
    shots: sizes at which the step was captured, with the graph there. said: how the range was narrowed, for people.
    """

    generic: Captured
    trace_samples: tuple[tuple[dict[str, int], Graph], ...]
    said: tuple[str, ...] = ()


class Hierarchy(msgspec.Struct, frozen=True):
    """A captured step in block order, and its tree of blocks.

    captured: the step with its backward operations in block order. parts: the top level, in forward order. order: for
    each operation of `captured`, its index in the step that was partitioned. sized: the same for other sizes.
    """

    captured: Captured
    parts: tuple[BlockSpan, ...]
    order: tuple[int, ...]
    sized: SizedStep | None = None

    @property
    def planned(self) -> str:
        """The sizes that it is planned at, where it is for others, too: `b=4, t=64`; "" where it is for one."""
        dims = self.sized.generic.model.dims if self.sized else {}
        return spelled({name: dim.planned for name, dim in dims.items()})

    def leaves(self) -> Iterator[BlockSpan]:
        for part in self.parts:
            yield from part.leaves()


def whole(captured: Captured, name: str = "model") -> Hierarchy:
    """The trivial hierarchy: one leaf that holds every operation, in captured order."""
    graph, count = captured.graph, len(captured.graph.operations)
    label = captured.classes.get("", "") or captured.model.name or name
    leaf = BlockSpan(name, "", label, (0, graph.backward_start), (graph.backward_start, count))
    return Hierarchy(captured, (leaf,), tuple(range(count)))
