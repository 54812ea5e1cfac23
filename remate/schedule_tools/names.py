"""Resolves names from the command line: an operation, an instance of a block, or a value of the flat step."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import InstanceSpan, tiles_by_id
from remate_runtime.format import did_you_mean

from ..errors import UnknownNameError
from .analysis import Analysis


class Named(msgspec.Struct, frozen=True):
    """An operation, a value or an instance; exactly one is set. operation, value: index in the graph, or -1. tiles: all
    tiles of a split operation; `operation` is then its first tile that is not a view."""

    operation: int = -1
    value: int = -1
    place: InstanceSpan | None = None
    tiles: tuple[int, ...] = ()


class IdIndex:
    """Look-ups by full id. Build it once for many look-ups."""

    def __init__(self, opened: Analysis) -> None:
        self.operations = {op.id: index for index, op in enumerate(opened.graph.operations)}
        self.tiles = tiles_by_id(self.operations)
        self._views = [op.view for op in opened.graph.operations]
        self.places = {place.id: place for place in opened.expanded.places}
        self.values = {value.name: index for index, value in enumerate(opened.graph.values)}

    def find(self, text: str) -> Named:
        """Resolve `text` (a value may start with `%`). Raise UnknownNameError with a suggestion."""
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
        hint = did_you_mean(text.removeprefix("%"), known, "`remate show` lists the contents of the schedule")
        return UnknownNameError(f"there is no {what} {text[:120]!r}\n  hint: {hint}")


def owners(opened: Analysis) -> list[InstanceSpan]:
    """For each operation, the innermost instance that contains it."""
    places: list[InstanceSpan | None] = [None] * len(opened.graph.operations)
    for place in opened.expanded.places:
        if place.leaf:
            for index in (*place.forward, *place.backward):
                places[index] = place
    return [place for place in places if place is not None]
