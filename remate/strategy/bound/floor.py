"""The least peak that any schedule of a graph can have, proven: at every operation, what must be live there."""

from __future__ import annotations

import numpy as np

from ..account import backward_holdings, levels
from ..problem import Problem


def proven_floor(problem: Problem) -> int:
    """Bytes that some operation needs at once in every schedule: its arguments, outputs and workspace, outputs of the
    model, gradients that exist by then, and backward values still to be read. Assumptions as in `bound`."""
    return floor_and_holder(problem)[0]


def floor_and_holder(problem: Problem) -> tuple[int, int]:
    """The proven floor, and the operation that needs as much; -1 where there is none."""
    forced = forced_bytes(problem)
    needs = (
        (int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i)), -i)
        for i, real in enumerate(problem.real)
        if real
    )
    most, at = max(needs, default=(0, 1))
    return most, -at


def least_need(problem: Problem) -> int:
    """Bytes that some operation needs on its own, in whatever order operations run: what it reads and makes, and its
    workspace, less the largest argument whose place its result may take."""

    def need(i: int) -> int:
        taken = max((problem.size[s] for s in problem.may_overwrite[i]), default=0)
        held = sum(problem.size[s] for s in {*problem.reads[i], *problem.writes[i]})
        return held + problem.workspace[i] - taken

    return max((need(i) for i, real in enumerate(problem.real) if real), default=0)


def forced_bytes(problem: Problem) -> np.ndarray:
    """By operation: bytes live while it runs in any schedule, without its arguments from the forward.

    These are its results, its workspace, backward values still to be read, gradients that exist by then, and after the
    forward/backward boundary the outputs of the model (before it, they too can be evicted and computed again).
    """
    written = [
        (sum(problem.size[s] for s in problem.writes[i]), i, i) for i in problem.forward if not _shares(problem, i)
    ]
    workspace = [(problem.workspace[i], i, i) for i, real in enumerate(problem.real) if real]
    held = [
        (h.nbytes, h.first + (not h.given and _shares(problem, h.first)), h.last - h.overwritten)
        for h in backward_holdings(problem)
    ]
    return np.array(levels(len(problem.real), [*written, *workspace, *held]), dtype=np.int64)


def _shares(problem: Problem, i: int) -> bool:
    """Whether operation i may write over a forward storage: its output then needs no bytes of its own."""
    return any(problem.producer[s] < problem.backward_start for s in problem.may_overwrite[i])


def arguments(problem: Problem, i: int) -> list[int]:
    """Forward storages that must be resident while operation i runs, and that `forced_bytes` does not count."""
    counted = problem.returned if i >= problem.backward_start else frozenset()
    return [s for s in problem.reads[i] if problem.producer[s] < problem.backward_start and s not in counted]
