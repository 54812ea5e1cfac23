"""Which values may be paged: results of forward in storages of the step's own, parameters, and their gradients.

A step does not change parameters. Gradients leave when they are complete.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ..errors import ScheduleError
from .graph import DEVICE, FlatPage, Graph

_ONLY = "only parameters, their gradients and results of forward are paged"


def held_outside(graph: Graph) -> Mapping[int, str]:
    """Return values whose storages other code holds, with the reason why they stay; "" for gradients that can leave."""
    root, values = graph.root, graph.values
    held = {root[output]: "it is an output, which the caller holds" for output in graph.outputs}
    taken = [root[gradient] for _, gradient in graph.gradients]
    held |= dict.fromkeys(taken, "it is a gradient, and its storage belongs to a second gradient or is kept")
    for (source, gradient), owner in zip(graph.gradients, taken, strict=True):
        if values[owner].producer < graph.backward_start or taken.count(owner) > 1:
            continue
        name = values[gradient].name
        held[owner] = f"a gradient has its storage: page {name}"
        held[gradient] = _gradient_stays(graph, source, gradient)
    return held


def _gradient_stays(graph: Graph, source: int, gradient: int) -> str:
    about = graph.values[source]
    if about.kind != "parameter":
        return "it is the gradient of an input, which waits for backward to end"
    if reason := _of_parts(graph):
        return reason
    if graph.memory(gradient) != DEVICE:
        return "it is not on the device"
    if not graph.nbytes(gradient):
        return "it is empty"
    if graph.values[gradient].type != about.type or about.type.dense != about.type:
        return f"it has a different memory layout than {about.name}, and autograd would copy it"
    return ""


def _of_parts(graph: Graph) -> str:
    return "the step is a call of a part of a model, among others" if graph.calls > 1 or graph.modules > 1 else ""


def is_parameter(graph: Graph, value: int) -> bool:
    """Return whether a value is a parameter of the model."""
    return graph.values[value].kind == "parameter"


def is_paged_gradient(graph: Graph, value: int) -> bool:
    """Return whether a paged value is a gradient. Otherwise it is a parameter or a result of forward."""
    return graph.values[value].producer >= graph.backward_start


def stays(graph: Graph, value: int, held: Mapping[int, str]) -> str:
    """Return why a value cannot leave the device; "" if it can. held: the result of `held_outside`."""
    about = graph.values[value]
    if about.kind == "parameter":
        if graph.memory(value) != DEVICE:
            return "it is not on the device"
        if about.type.dense != about.type or not graph.nbytes(value):
            return "it has gaps, or is empty"
        return _of_parts(graph) or held.get(value, "")
    if about.producer < 0:
        kind = "gradient" if about.kind == "tangent" else about.kind
        return f"it is {'an' if kind == 'input' else 'a'} {kind}, and {_ONLY}"
    if about.producer >= graph.backward_start:
        return held.get(value, f"backward produces it, and {_ONLY}")
    if graph.root[value] != value:
        return f"it is a view: {graph.values[graph.root[value]].name} owns its storage"
    if graph.memory(value) != DEVICE:
        return "it is not on the device"
    return held.get(value, "")


def check_page(graph: Graph, page: FlatPage, held: Mapping[int, str]) -> None:
    """Check a page.

    Raises:
        ScheduleError: R048, the value cannot leave; R049, its points are not in order.
    """
    name = graph.values[page.value].name
    if reason := stays(graph, page.value, held):
        raise ScheduleError(
            "R048", f"{name[:120]!r} cannot be paged: {reason}", hint="delete it, or name another value"
        )
    producer = graph.values[page.value].producer
    points = [("out", page.out), ("gone", page.gone), ("back", page.back)]
    stated = [(field, point) for field, point in points if point is not None]
    _check_points_apply(graph, page.value, [field for field, _ in stated])
    for field, point in stated:
        if point <= producer:
            raise ScheduleError(
                "R049", f"{field!r} of {name[:120]!r} is before it is produced", hint="choose a later point"
            )
    for (first, at), (second, other) in itertools.pairwise(stated):
        if at > other or (second == "back" and first == "gone" and at == other):
            hint = "the order is out, gone, back"
            raise ScheduleError("R049", f"{second!r} of {name[:120]!r} comes before {first!r}", hint=hint)


def _check_points_apply(graph: Graph, value: int, fields: list[str]) -> None:
    """Check that a parameter or gradient has only the points that apply to it (R049)."""
    name = graph.values[value].name
    if fields and is_paged_gradient(graph, value):
        raise ScheduleError(
            "R049",
            f"{fields[0]!r} of {name[:120]!r}, a gradient, which leaves when it is complete",
            hint=f"delete {fields[0]!r}",
        )
    if "out" in fields and is_parameter(graph, value):
        raise ScheduleError(
            "R049",
            f"'out' of {name[:120]!r}, a parameter, which is not copied out",
            hint="delete 'out'",
        )
