"""Which reruns are legal: of forward operations that are no views, after their first run."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ScheduleError
from .graph import FlatRerun, Graph


def check_reruns(graph: Graph, reruns: Iterable[FlatRerun]) -> None:
    """Raise ScheduleError for the first rerun that names no forward operation, a view, or too early a point."""
    for rerun in reruns:
        if not 0 <= rerun.op < graph.backward_start or not 0 <= rerun.before < len(graph.operations):
            raise ScheduleError("R042", "only forward operations rerun", hint="name an operation of the forward part")
        name = graph.operations[rerun.op].id
        if graph.operations[rerun.op].view:
            raise ScheduleError("R043", f"{name!r} is a view: views are re-made whenever they are needed, delete it")
        if rerun.before <= rerun.op:
            raise ScheduleError("R045", f"{name!r} reruns before it has run once", hint="choose a later point")
