"""Of which sizes something in a step follows, for messages: found by captures in which one size alone is another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import CaptureError
from .align import Row, difference, rows
from .samples import Range
from .survey import Shot, Survey


def sizes_of_row(survey: Survey, ranges: Sequence[Range], shots: Sequence[Shot], row: Row) -> list[str]:
    """The sizes that the numbers of one place follow from. row: they, at `shots`."""
    graphs = [shot.captured.graph for shot in shots]

    def moved(other: Shot) -> bool:
        if difference(graphs[0], other.captured.graph, shots[0].captured.modules):
            return True
        every = rows([*graphs, other.captured.graph])
        return any(each[:-1] == row and each[-1] != each[0] for each in every)

    return _those(survey, ranges, shots[0], moved)


def sizes_of_place(survey: Survey, ranges: Sequence[Range], first: Shot, place: str) -> list[str]:
    """The sizes that decisions at a line of the user's code follow from."""

    def taken(shot: Shot) -> list[tuple[object, ...]]:
        return [(d.comparison, d.left, d.right, d.held) for d in shot.log.decisions if d.place == place]

    return _those(survey, ranges, first, lambda other: taken(other) != taken(first))


def _those(survey: Survey, ranges: Sequence[Range], first: Shot, moved: Callable[[Shot], bool]) -> list[str]:
    """Names of sizes of which another number moves something; all names if none does alone."""
    found = []
    for one in ranges:
        for number in {one.min, one.max} - {one.planned}:
            try:
                other = survey.at({**first.sizes, one.name: number})
            except CaptureError:
                continue
            if moved(other):
                found.append(one.name)
                break
    return found or [one.name for one in ranges]
