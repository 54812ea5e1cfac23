"""Which recomputations are legal: of forward operations except views, after their first run."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ScheduleError
from .graph import FlatRecompute, Graph


def check_recomputes(graph: Graph, recomputes: Iterable[FlatRecompute]) -> None:
    """Check recomputations.

    Raises:
        ScheduleError: R042, no forward operation; R043, a view; R045, before the first run.
    """
    for recompute in recomputes:
        if not 0 <= recompute.op < graph.backward_start or not 0 <= recompute.before < len(graph.operations):
            raise ScheduleError(
                "R042", "only forward operations are recomputed", hint="name an operation of the forward part"
            )
        name = graph.operations[recompute.op].id
        if graph.operations[recompute.op].view:
            raise ScheduleError(
                "R043", f"{name!r} is a view, and views are created again whenever they are needed: delete it"
            )
        if recompute.before <= recompute.op:
            raise ScheduleError("R045", f"{name!r} recomputations before it has run once", hint="choose a later point")
