"""Instructions that write results into existing tensors instead of new memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

Slots = list[Any]


class ResultPlace(NamedTuple):
    """The place of a result. address: in bytes from the beginning of a block of memory."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class PlacedForm(NamedTuple):
    """A way to call an operator that writes its results into given tensors.

    Attributes:
        call: Takes the operator's arguments, only the first `argument_count` of them
            if set, and then the tensors by name.
        names: Names of the tensors, by output.
    """

    call: Callable[..., Any]
    names: tuple[str, ...] = ("out",)
    argument_count: int | None = None


class Placed(NamedTuple):
    """An execution that writes its results into a block. places: by output."""

    form: PlacedForm
    places: tuple[ResultPlace, ...]


class Room(NamedTuple):
    """The memory for a step's results.

    Attributes:
        placed: Executions by position of the event.
        opened: `opened(empty, views, spare)` returns a function that creates the slots of a forward. views: slots of
            tensors at these places. spare: a slot for what must stay as long as the slots.
        peak: Peak of the step in bytes, including the block.
    """

    placed: Mapping[int, Placed]
    opened: Callable[[Slots, Mapping[ResultPlace, int], int], Callable[[], Slots]]
    peak: int


def writing(
    form: PlacedForm,
    pick: Callable[[Slots], Iterable[Any]],
    kwargs: Mapping[str, Callable[[Slots], Any]] | Mapping[str, Any],
    live: bool,
    into: Sequence[int],
    to: Sequence[int],
) -> Callable[[Slots], None]:
    """Return an instruction that writes into tensors.

    Args:
        form: The way to call the operator.
        pick: Reads positional arguments from the slots.
        kwargs: Values, or functions that read them from the slots if `live`.
        live: See `kwargs`.
        into: Slots of the tensors to write into.
        to: Slots that refer to them afterwards.
    """
    call, names = form.call, form.names
    if len(into) == 1 and names == ("out",) and not live:
        return _one(call, pick, dict(kwargs), into[0], to[0])

    def run(slots: Slots) -> None:
        named = {key: get(slots) for key, get in kwargs.items()} if live else kwargs
        given = {name: slots[at] for name, at in zip(names, into, strict=True)}
        call(*pick(slots), **named, **given)
        for slot, name in zip(to, names, strict=True):
            slots[slot] = given[name]

    return run


def _one(
    call: Callable[..., object], pick: Callable[[Slots], Iterable[object]], kwargs: dict[str, Any], into: int, to: int
) -> Callable[[Slots], None]:
    if kwargs:

        def named(slots: Slots) -> None:
            call(*pick(slots), out=slots[into], **kwargs)
            slots[to] = slots[into]

        return named

    def plain(slots: Slots) -> None:
        call(*pick(slots), out=slots[into])
        slots[to] = slots[into]

    return plain
