"""The flat training step: what a schedule file expands to, and what every planner strategy works on. Needs no torch.

Operations stand in step order: forward first (`operations[:backward_start]`), then backward. Values are numbered; an
operation refers to them by number. A *view* shares its base's storage: `root[v]` is the value that owns the storage of
v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..format.number_text import computed, parse_number
from ..format.schedule import LANES, Lane
from ..format.tensor_type import TensorType
from ..format.vocabulary import Gradients, PageMemory
from ..operators.tables import DEVICES

DEVICE, HOST = "device", "host"  # memories: of the device that a schedule is for, and of the machine that it is in
LIVE = "live"
SOURCES = ("parameter", "buffer", "input", "constant", "tangent", LIVE)
NUMBER = TensorType("f64", (), None, True)  # what stands for the type of a live attribute, which is no tensor


class Ref(msgspec.Struct, frozen=True):
    """A value inside an operation's arguments."""

    value: int


class Number(msgspec.Struct, frozen=True):
    """A float inside an operation's arguments that follows from live attributes. text: in the file's words, the
    attributes called by their places in `values`: `1/(1 - %0)`."""

    text: str
    values: tuple[int, ...]

    def of(self, value: Callable[[int], int]) -> Number:
        """The same number in a graph that counts its values otherwise."""
        return Number(self.text, tuple(map(value, self.values)))


class Value(msgspec.Struct, frozen=True):
    """kind: one of SOURCES, or "op" for what an operation makes. name: full name without `%`. data: elements of a
    constant; of a live attribute, what it was when it was planned."""

    name: str
    type: TensorType
    kind: str
    producer: int = -1  # index in Graph.operations; -1 for sources
    data: tuple[Any, ...] | None = None


class Op(msgspec.Struct, frozen=True):
    """One operation. args and kwargs hold Ref, Number, literals and (nested) tuples; `op` names the overload as in the
    file."""

    id: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]  # tensors in the arguments, in order, each once
    writes: tuple[int | None, ...]  # values made; None where the operator returns none
    multiple: bool  # the operator returns a tuple or list
    view: bool  # outputs share the storage of the first value read
    random: bool  # draws from the generator
    ns: int = 0
    workspace: int = 0
    source: str = ""


class Graph(msgspec.Struct, frozen=True):
    """A training step without its plan.

    outputs: values that the module returns (they live until the step ends). gradients: (source value, its gradient).
    updates: (buffer value, value it takes when forward ends). root: for each value, the value that owns its storage.
    delivered: what becomes of gradients that are delivered; all that is said of the step's memory assumes it.
    calls: of this step within one of the model around it, where it is that of a part. modules: that make them, each
    with parameters of its own. lanes: how fast values are paged, by memory.
    """

    values: tuple[Value, ...]
    operations: tuple[Op, ...]
    backward_start: int
    outputs: tuple[int, ...]
    gradients: tuple[tuple[int, int], ...]
    updates: tuple[tuple[int, int], ...]
    root: tuple[int, ...]
    device: str = "cpu"
    delivered: Gradients = "retained"
    calls: int = 1
    modules: int = 1
    lanes: Mapping[str, Lane] = msgspec.field(default_factory=lambda: LANES)

    def nbytes(self, value: int) -> int:
        """Bytes that the allocator hands out for the storage of `value`: a multiple of what its device deals in."""
        return self._rounded(self.values[self.root[value]].type)

    def nbytes_of_copy(self, value: int) -> int:
        """Bytes of a storage for `value` alone, without gaps."""
        return self._rounded(self.values[value].type.dense)

    def _rounded(self, stored: TensorType) -> int:
        unit = DEVICES["cpu" if stored.cpu else self.device].allocation
        return -(-stored.nbytes // unit) * unit

    @property
    def host(self) -> str:
        """The memory of tensors that stay on the CPU; where the step runs on the CPU, that of its device."""
        return DEVICE if self.device == "cpu" else HOST

    def memory(self, value: int) -> str:
        """The memory that holds the storage of `value`: DEVICE or HOST."""
        return self.host if self.values[self.root[value]].type.cpu else DEVICE

    def held_by_caller(self, tangent: int) -> bool:
        """Whether the caller of backward holds a tangent to the end: `loss.backward()` makes the gradient of a loss of
        one element itself, and frees it when backward has returned."""
        return self.values[tangent].type.numel == 1


def planned_number(graph: Graph, number: Number) -> float:
    """What a number was when the step was planned; 0 where the attributes' values give none."""
    try:
        return computed(parse_number(number.text))(
            [float((graph.values[at].data or (0.0,))[0]) for at in number.values]
        )
    except (ArithmeticError, ValueError):
        return 0.0


def roots(count: int, operations: Sequence[Op]) -> tuple[int, ...]:
    """For each of so many values, the value that owns its storage."""
    root = list(range(count))
    for op in operations:
        for value in op.writes if op.view else ():
            if value is not None:
                root[value] = root[op.reads[0]]
    return tuple(root)


def numbers_in(op: Op) -> list[Number]:
    """Those among the arguments of an operation."""
    return [one for one in (*op.args, *op.kwargs.values()) if isinstance(one, Number)]


class FlatRecompute(msgspec.Struct, frozen=True):
    """Operation `op` (an index into the forward) runs again just before operation `before` (an index), in list
    order."""

    op: int
    before: int


class FlatPage(msgspec.Struct, frozen=True):
    """The storage of `value`, which forward makes, leaves the device and comes back before its next read.

    Points are indices of operations, just before which things happen; None: as the file's defaults are (`link.paging`).
    """

    value: int
    to: PageMemory = "disk"
    out: int | None = None
    gone: int | None = None
    back: int | None = None
