"""What happens in a linked step, one type per kind of event. Needs no torch.

Events stand in the order in which they happen; a *position* is an index among them. A kind that moves memory elsewhere,
or hands a result out early, is a further type beside these: whoever reads events goes by their type.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..flat_step.graph import DEVICE, FlatPage, Graph
from ..format.vocabulary import PageMemory


class Run(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="run"):
    """The first run of an operation.

    overwrites: position in `args` of the argument whose storage the result takes over; None: it makes its own.
    saves_state: the generator's state before it is kept for the recomputations.
    """

    op: int
    overwrites: int | None = None
    saves_state: bool = False


class RecomputeRun(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="recompute"):
    """A later run of an operation. A random one replays the state that its first run saved, and leaves the generator as
    it is. overwrites: as in `Run`. drops_state: no other recomputation needs the saved state.
    """

    op: int
    overwrites: int | None = None
    drops_state: bool = False


class View(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="view"):
    """A view is made, or made again because its base was. Takes neither time nor memory."""

    op: int


class Free(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="free"):
    """The slots of these values are emptied: their last read is over. A storage goes with the last slot that holds
    it."""

    values: tuple[int, ...]


class Update(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="update"):
    """A buffer of the model takes a value. preserves: backward reads the old contents, so its slot gets a copy of them.

    An output that lies in the buffer stays there, and shows what the buffer takes.
    """

    buffer: int
    value: int
    preserves: bool


class BackwardStart(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="backward_start"):
    """From forward to backward: the caller has the outputs, the slots of `frees` are emptied, then the gradients of the
    outputs (tangents) arrive."""

    frees: tuple[int, ...]


class Deliver(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="deliver"):
    """Gradients go to their owners: autograd adds them to `.grad`, hooks see them, an optimizer may use them up.

    gradients: numbers among the graph's. No later event touches their storages, nor reads the parameters that they are
    of.
    """

    gradients: tuple[int, ...]


class PageOut(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_out"):
    """From here on the storage of `value` is copied to the memory `to`, beside what runs. trip: counts the ways out and
    back of a step; its other events have the same number. Parameters have no such event: nothing is copied out."""

    value: int
    trip: int
    to: PageMemory


class PageGone(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_gone"):
    """The step waits until the copy out is complete; the slot is emptied behind it, that of a gradient filled with what
    its owner gets. The bytes of a parameter leave the device; its slot stays."""

    value: int
    trip: int
    to: PageMemory


class PageBack(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_back"):
    """`value` gets a new storage, or the bytes of a parameter their place, and the copy back begins."""

    value: int
    trip: int
    to: PageMemory


class PageReady(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="page_ready"):
    """The step waits until the copy back is complete: the value is read next."""

    value: int
    trip: int
    to: PageMemory


PAGED_TO: Mapping[PageMemory, str] = {"disk": "disk", "host": "pinned"}  # the accounts of what is paged, by `to`
Paging = PageOut | PageGone | PageBack | PageReady
Event = Run | RecomputeRun | View | Free | Update | BackwardStart | Deliver | Paging
Execution = Run | RecomputeRun | View  # events that call an operator
Computation = Run | RecomputeRun  # events that take time and memory


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """A storage: bytes of a memory held from the event at `birth` on, until the event at `death` has freed it.

    value: the value it was made for; None for a state of the generator. death: the number of events where it is held to
    the end. memory: as `Graph.memory` names it, or the one that the value is paged to. delivered: of a gradient that
    its owner may free, the event that hands it over; where the graph assumes that it does, death is right behind it.
    """

    value: int | None
    nbytes: int
    birth: int
    death: int
    memory: str = DEVICE
    delivered: int | None = None


class Linked(msgspec.Struct, frozen=True):
    """A step in which everything that a schedule file leaves to be derived is an event. backward_start: position of the
    forward/backward boundary. pages: that were asked for; those without effect have no events."""

    graph: Graph
    events: tuple[Event, ...]
    backward_start: int
    allocations: tuple[Allocation, ...]
    pages: tuple[FlatPage, ...] = ()

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
        """Whether any value leaves the device."""
        return any(isinstance(event, PageOut | PageBack) for event in self.events)

    @property
    def parameters_paged(self) -> bool:
        """Whether parameters leave the device; then all of them count for the peak, as long as they are there."""
        kinds = self.graph.values
        return any(isinstance(event, PageBack) and kinds[event.value].kind == "parameter" for event in self.events)
