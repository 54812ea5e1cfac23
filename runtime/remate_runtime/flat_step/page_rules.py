"""Which values may be paged: those that forward makes, in storages that the step alone holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ..errors import ScheduleError
from .graph import DEVICE, FlatPage, Graph


def held_outside(graph: Graph) -> Mapping[int, str]:
    """Owners of storages that somebody else holds, and why."""
    outputs = {graph.root[output]: "it is an output, which the caller holds" for output in graph.outputs}
    return outputs | {graph.root[gradient]: "it is a gradient" for _, gradient in graph.gradients}


def stays(graph: Graph, value: int, held: Mapping[int, str]) -> str:
    """Why a value cannot leave the device; "" if it can. held: `held_outside`."""
    about = graph.values[value]
    if about.producer < 0:
        kind = "gradient" if about.kind == "tangent" else about.kind
        return f"it is {'an' if kind == 'input' else 'a'} {kind}, and only what forward makes is paged"
    if about.producer >= graph.backward_start:
        return "backward makes it, and only what forward makes is paged"
    if graph.root[value] != value:
        return f"it is a view: {graph.values[graph.root[value]].name} owns its storage"
    if graph.memory(value) != DEVICE:
        return "it is not on the device"
    return held.get(value, "")


def check_page(graph: Graph, page: FlatPage, held: Mapping[int, str]) -> None:
    """Raise ScheduleError R048 for a value that cannot leave, R049 for points that are not in order."""
    name = graph.values[page.value].name
    if reason := stays(graph, page.value, held):
        raise ScheduleError(
            "R048", f"{name[:120]!r} cannot be paged: {reason}", hint="delete it, or name another value"
        )
    made = graph.values[page.value].producer
    points = [("out", page.out), ("gone", page.gone), ("back", page.back)]
    stated = [(field, point) for field, point in points if point is not None]
    for field, point in stated:
        if point <= made:
            raise ScheduleError(
                "R049", f"{field!r} of {name[:120]!r} is before it is made", hint="choose a later point"
            )
    for (first, at), (second, other) in itertools.pairwise(stated):
        if at > other or (second == "back" and first == "gone" and at == other):
            hint = "the order is out, gone, back"
            raise ScheduleError("R049", f"{second!r} of {name[:120]!r} comes before {first!r}", hint=hint)
