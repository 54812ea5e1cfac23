"""What a name on the command line refers to: an operation, an instance of a block, or a value of the flat step."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import InstanceSpan, tiles_by_id
from remate_runtime.format import did_you_mean

from ..errors import UnknownNameError
from .analysis import Analysis


class Named(msgspec.Struct, frozen=True):
    """Exactly one of the three. operation, value: index in the graph or -1. tiles: of an operation that is split, all
    that it became; `operation` is the first of them that is no view."""

    operation: int = -1
    value: int = -1
    place: InstanceSpan | None = None
    tiles: tuple[int, ...] = ()


class IdIndex:
    """Look-ups by full id. Built once for many."""

    def __init__(self, opened: Analysis) -> None:
        self.operations = {op.id: index for index, op in enumerate(opened.graph.operations)}
        self.tiles = tiles_by_id(self.operations)
        self._views = [op.view for op in opened.graph.operations]
        self.places = {place.id: place for place in opened.expanded.places}
        self.values = {value.name: index for index, value in enumerate(opened.graph.values)}

    def find(self, text: str) -> Named:
        """What `text` (`%` may precede a value) stands for. Raise UnknownNameError with what may have been meant."""
        bare = text.removeprefix("%")
        if text in self.operations:
            return Named(operation=self.operations[text])
        if text in self.tiles:
            tiles = self.tiles[text]
            first = next((i for i in tiles if not self._views[i]), tiles[0])
            return Named(operation=first, tiles=tuple(tiles))
        if text in self.places:
            return Named(place=self.places[text])
        if bare in self.operations:
            return Named(operation=self.operations[bare])
        if bare in self.values:
            return Named(value=self.values[bare])
        raise self.unknown(text, "operation, instance or value")

    def unknown(self, text: str, what: str) -> UnknownNameError:
        known = self.places if what == "instance" else {**self.operations, **self.places, **self.values}
        hint = did_you_mean(text.removeprefix("%"), known, "`remate show` lists what the schedule holds")
        return UnknownNameError(f"there is no {what} {text[:120]!r}\n  hint: {hint}")


def owners(opened: Analysis) -> list[InstanceSpan]:
    """For every operation the innermost instance that holds it."""
    places: list[InstanceSpan | None] = [None] * len(opened.graph.operations)
    for place in opened.expanded.places:
        if place.leaf:
            for index in (*place.forward, *place.backward):
                places[index] = place
    return [place for place in places if place is not None]
