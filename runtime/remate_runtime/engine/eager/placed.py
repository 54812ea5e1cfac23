"""Instructions whose results are written into tensors that are there, instead of into new memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

Slots = list[Any]


class ResultPlace(NamedTuple):
    """Where a result lies, and how. address: in bytes, from the beginning of a block of memory."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class PlacedForm(NamedTuple):
    """A way to call an operator that writes its results into given tensors. call: takes the operator's arguments, or so
    many of them where `takes` says it, and then the tensors by name. names: of these, by output."""

    call: Callable[..., Any]
    names: tuple[str, ...] = ("out",)
    takes: int | None = None


class Placed(NamedTuple):
    """An execution that writes its results into a block. places: by output."""

    form: PlacedForm
    places: tuple[ResultPlace, ...]


class Room(NamedTuple):
    """What a step writes its results into. placed: by position of the event. opened(empty, views, spare): makes the
    list of slots of one forward from the empty one; views: the slots that hold tensors at these places; spare: a slot
    that nothing else uses, for what must live as long as the list. peak: bytes that the step holds at its worst moment,
    the block among them."""

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
    """The instruction. kwargs: values, or where `live` says so what gets them from the slots. into: slots of the
    tensors that are written into. to: slots that show them from then on."""
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
    call: Callable[..., Any], pick: Callable[[Slots], Iterable[Any]], kwargs: dict[str, Any], into: int, to: int
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
