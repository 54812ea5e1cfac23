"""The flat training step: what a schedule file expands to and planner strategies use. Does not require torch.

Operations are in step order: forward first (`operations[:backward_start]`), then backward. Values are numbered, and
operations refer to them by number. A *view* shares its base's storage: `root[v]` is the value that owns the storage of
v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from ..format.distributed import Sharded
from ..format.number_text import computed, parse_number
from ..format.schedule import LANES, Lane
from ..format.tensor_type import TensorType
from ..format.vocabulary import Gradients, PageMemory
from ..operators.tables import DEVICES

DEVICE, HOST = "device", "host"  # memories: of the schedule's device, and of its host
LIVE = "live"
SOURCES = ("parameter", "buffer", "input", "constant", "tangent", LIVE)
NUMBER = TensorType("f64", (), None, True)  # the type of a live attribute, which is not a tensor


Argument: TypeAlias = "Ref | Number | bool | int | float | str | dict[str, Any] | tuple[Argument, ...] | None"


class Ref(msgspec.Struct, frozen=True, gc=False):
    """A value inside an operation's arguments."""

    value: int


class Number(msgspec.Struct, frozen=True, gc=False):
    """A float in an operation's arguments that follows from live attributes.

    Attributes:
        text: The expression; attributes are named by their indices in `values`: `1/(1 - %0)`.
        values: The attributes.
    """

    text: str
    values: tuple[int, ...]

    def of(self, value: Callable[[int], int]) -> Number:
        """Return the same number in a graph with different indices of values."""
        return Number(self.text, tuple(map(value, self.values)))


class Value(msgspec.Struct, frozen=True, gc=False):
    """A value of a step.

    Attributes:
        name: Full name without `%`.
        type: Its type.
        kind: One of SOURCES, or "op" for results of operations.
        producer: Index in `Graph.operations`; -1 for sources.
        data: Elements of a constant, or the planned number of a live attribute.
    """

    name: str
    type: TensorType
    kind: str
    producer: int = -1  # index in Graph.operations; -1 for sources
    data: tuple[Any, ...] | None = None


class Op(msgspec.Struct, frozen=True, gc=False):
    """An operation. args and kwargs contain Ref, Number, literals and (nested) tuples; `op` names the overload as in
    the file."""

    id: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]  # tensors in the arguments, in order, each once
    writes: tuple[int | None, ...]  # results; None where the operator returns none
    multiple: bool  # the operator returns a tuple or list
    view: bool  # outputs share the storage of the first value read
    random: bool  # draws from the generator
    ns: int = 0
    workspace: int = 0
    source: str = ""


class Graph(msgspec.Struct, frozen=True, dict=True):
    """A training step without its plan.

    Attributes:
        outputs: Values that the module returns (they live until the step ends).
        gradients: (source value, its gradient).
        updates: (buffer value, its new value when forward ends).
        root: For each value, the value that owns its storage.
        delivered: What happens to delivered gradients; all memory figures of the step assume it.
        calls: Calls of this step within a step of the enclosing model, if it is a part.
        modules: Modules that make these calls, each with separate parameters.
        lanes: Paging speed of each memory.
        tangents_held: Whether the caller of backward keeps all gradients of outputs, as pipelines do in their buffers.
        sharded: How FSDP2 divides the parameters over ranks.
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
    tangents_held: bool = False
    sharded: Sharded | None = None

    def nbytes(self, value: int) -> int:
        """Return the bytes that the allocator assigns to the storage of `value`: a multiple of its allocation unit."""
        return self.storage_bytes[value]

    @cached_property
    def storage_bytes(self) -> tuple[int, ...]:
        """The result of `nbytes` for every value."""
        known: dict[int, int] = {}  # by identity of a type, because most types are shared
        every: list[int] = []
        for owner in self.root:
            stored = self.values[owner].type
            nbytes = known.get(id(stored))
            if nbytes is None:
                nbytes = known[id(stored)] = self._rounded(stored)
            every.append(nbytes)
        return tuple(every)

    @cached_property
    def overwritable(self) -> tuple[tuple[int, ...], ...]:
        """For every operation, the positions of arguments whose storage its result can take (`in_place`)."""
        from .in_place import overwritable

        return tuple(overwritable(self, op) for op in self.operations)

    def nbytes_of_copy(self, value: int) -> int:
        """Return the bytes of a storage for `value` alone, without gaps."""
        return self._rounded(self.values[value].type.dense)

    def _rounded(self, stored: TensorType) -> int:
        unit = DEVICES["cpu" if stored.cpu else self.device].allocation
        return -(-stored.nbytes // unit) * unit

    @property
    def host(self) -> str:
        """Return the memory of tensors that stay on the CPU; for a step on the CPU, its device."""
        return DEVICE if self.device == "cpu" else HOST

    def memory(self, value: int) -> str:
        """Return the memory of the storage of `value`: DEVICE or HOST."""
        return self.host if self.values[self.root[value]].type.cpu else DEVICE

    def held_by_caller(self, tangent: int) -> bool:
        """Return whether the caller of backward keeps a tangent to the end.

        `loss.backward()` creates the gradient of a one-element loss itself, and frees it after backward.
        """
        return self.tangents_held or self.values[tangent].type.numel == 1


def planned_number(graph: Graph, number: Number) -> float:
    """Return the planned value of a number; 0 if the attributes' values give none."""
    try:
        return computed(parse_number(number.text))(
            [float((graph.values[at].data or (0.0,))[0]) for at in number.values]
        )
    except (ArithmeticError, ValueError):
        return 0.0


def roots(count: int, operations: Sequence[Op]) -> tuple[int, ...]:
    """Return for each value the value that owns its storage."""
    root = list(range(count))
    for op in operations:
        for value in op.writes if op.view else ():
            if value is not None:
                root[value] = root[op.reads[0]]
    return tuple(root)


def numbers_in(op: Op) -> list[Number]:
    """Return the numbers among the arguments of an operation."""
    return [argument for argument in (*op.args, *op.kwargs.values()) if isinstance(argument, Number)]


class FlatRecompute(msgspec.Struct, frozen=True):
    """Operation `op` (an index into the forward) runs again just before operation `before` (an index), in list
    order."""

    op: int
    before: int


class FlatPage(msgspec.Struct, frozen=True):
    """The storage of `value`, a result of forward, leaves the device and returns before its next read.

    Points are indices of operations and mean the moment just before them. None: the defaults of the file format
    (`link.paging`).
    """

    value: int
    to: PageMemory = "disk"
    out: int | None = None
    gone: int | None = None
    back: int | None = None
