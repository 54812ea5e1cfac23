"""The events of a linked step, a type per kind. Does not require torch.

Events are in execution order. A *position* is an index into them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..flat_step.graph import DEVICE, FlatPage, Graph
from ..format.vocabulary import PageMemory


class Run(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="run"):
    """The first run of an operation.

    Attributes:
        op: Index of the operation.
        overwrites: Position in `args` of the argument whose storage the result takes; None: it allocates its own.
        saves_state: The generator's state is saved first, for recomputations.
    """

    op: int
    overwrites: int | None = None
    saves_state: bool = False


class RecomputeRun(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="recompute"):
    """A later run of an operation.

    A random operation replays the state that its first run saved, and leaves the generator unchanged.

    Attributes:
        op: Index of the operation.
        overwrites: As in `Run`.
        drops_state: No other recomputation needs the saved state.
    """

    op: int
    overwrites: int | None = None
    drops_state: bool = False


class View(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="view"):
    """A view is created, or created again because its base was recomputed. It takes neither time nor memory."""

    op: int


class Free(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="free"):
    """The slots of these values are emptied after their last read. A storage is freed with its last slot."""

    values: tuple[int, ...]


class Update(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="update"):
    """A buffer of the model gets a new value. An output that is a view of the buffer shows the new value.

    Attributes:
        buffer: The buffer.
        value: The new value.
        preserves: Backward reads the old contents, so the slot of the buffer gets a copy of them.
    """

    buffer: int
    value: int
    preserves: bool


class BackwardStart(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="backward_start"):
    """The caller gets the outputs, the slots of `frees` are emptied, then the gradients of the outputs arrive."""

    frees: tuple[int, ...]


class Deliver(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="deliver"):
    """Gradients go to their owners: autograd adds them to `.grad`, hooks see them, an optimizer may consume them.

    No later event touches their storages or reads their parameters.

    Attributes:
        gradients: Numbers among the graph's gradients.
    """

    gradients: tuple[int, ...]


class PageOut(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_out"):
    """The copy of a storage to another memory begins, in parallel with what runs. Parameters are not copied out.

    Attributes:
        value: The owner of the storage.
        trip: Number of the trip out and back. All its events have the same number.
        to: The memory.
    """

    value: int
    trip: int
    to: PageMemory


class PageGone(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_gone"):
    """The step waits until the copy out is complete, then the slot is emptied.

    The slot of a gradient gets what its owner receives. The bytes of a parameter leave the device; its slot stays.
    """

    value: int
    trip: int
    to: PageMemory


class PageBack(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_back"):
    """`value` gets a storage on the device again, and the copy back begins."""

    value: int
    trip: int
    to: PageMemory


class PageReady(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_ready"):
    """The step waits until the copy back is complete. The value is read next."""

    value: int
    trip: int
    to: PageMemory


PAGED_TO: Mapping[PageMemory, str] = {"disk": "disk", "host": "pinned"}  # accounts of paged values, by `to`
Paging = PageOut | PageGone | PageBack | PageReady
Event = Run | RecomputeRun | View | Free | Update | BackwardStart | Deliver | Paging
Execution = Run | RecomputeRun | View  # events that call an operator
Computation = Run | RecomputeRun  # events that take time and memory


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """A storage: bytes of a memory, in use from the event at `birth` until the event at `death` has freed it.

    Attributes:
        value: The value that it was allocated for; None for a state of the generator.
        nbytes: Its bytes.
        birth: Position of the event that allocates it.
        death: Position of the event that frees it; the number of events if it stays to the end.
        memory: A memory as in `Graph.memory`, or the one that the value is paged to.
        delivered: For a gradient that its owner may free, the position of its delivery. If the graph assumes that the
            owner frees it, `death` is the next position.
        copied: The bytes are those of a copy of the value, without gaps.
        label: What FSDP2 uses it for; "" for all others.
    """

    value: int | None
    nbytes: int
    birth: int
    death: int
    memory: str = DEVICE
    delivered: int | None = None
    copied: bool = False
    label: str = ""


class Gathers(msgspec.Struct, frozen=True):
    """Memory of the device that FSDP2 uses beside the storages of the step (`link.sharding`).

    Attributes:
        allocations: Gathered parameters, buffers of communication, and gradients of shards.
        moments: Positions before whose event more is in use, and the bytes beside all storages and allocations that
            are in use both before and during that event.
    """

    allocations: tuple[Allocation, ...]
    moments: tuple[tuple[int, int], ...]


class Linked(msgspec.Struct, frozen=True):
    """A step with everything that a schedule file leaves to be derived.

    Attributes:
        graph: The step without its plan.
        events: The events in order.
        backward_start: Position of the forward/backward boundary.
        allocations: All storages.
        pages: The pages of the plan. Those without effect have no events.
        gathers: Memory of sharded parameters; None if the step has the whole ones.
    """

    graph: Graph
    events: tuple[Event, ...]
    backward_start: int
    allocations: tuple[Allocation, ...]
    pages: tuple[FlatPage, ...] = ()
    gathers: Gathers | None = None

    @property
    def forward(self) -> tuple[Event, ...]:
        """The events before the forward/backward boundary."""
        return self.events[: self.backward_start]

    @property
    def backward(self) -> tuple[Event, ...]:
        """The events after the forward/backward boundary."""
        return self.events[self.backward_start + 1 :]

    @property
    def paged(self) -> bool:
        """Return whether any value leaves the device."""
        return any(isinstance(event, PageOut | PageBack) for event in self.events)

    @property
    def parameters_paged(self) -> bool:
        """Return whether parameters leave the device. Then all parameters count for the peak while they are there."""
        kinds = self.graph.values
        return any(isinstance(event, PageBack) and kinds[event.value].kind == "parameter" for event in self.events)
