"""The proven floor: the least peak of any schedule of a graph, from the bytes that must be live at each operation."""

from __future__ import annotations

import numpy as np

from ..account import backward_holdings, levels
from ..problem import Problem


def proven_floor(problem: Problem) -> int:
    """Return the bytes that some operation needs at once in every schedule.

    They are its arguments, outputs and workspace, outputs of the model, gradients that exist by then, and backward
    values still to be read. Assumptions as in `cut_model`.
    """
    return floor_and_holder(problem)[0]


def floor_and_holder(problem: Problem) -> tuple[int, int]:
    """Return the proven floor and the operation that needs it; -1 if there are no operations."""
    forced = forced_bytes(problem)
    needs = (
        (int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i)), -i)
        for i, real in enumerate(problem.real)
        if real
    )
    most, at = max(needs, default=(0, 1))
    return most, -at


def least_need(problem: Problem) -> int:
    """Return the bytes that some operation needs alone, in any order of operations.

    They are its inputs, outputs and workspace, less the largest input whose place its output may take.
    """

    def need(i: int) -> int:
        taken = max((problem.size[s] for s in problem.may_overwrite[i]), default=0)
        held = sum(problem.size[s] for s in {*problem.reads[i], *problem.writes[i]})
        return held + problem.workspace[i] - taken

    return max((need(i) for i, real in enumerate(problem.real) if real), default=0)


def forced_bytes(problem: Problem) -> np.ndarray:
    """Return, by operation, bytes that are live while it runs in any schedule, without its arguments from the forward.

    They are its results, its workspace, backward values still to be read, gradients that exist by then, and, after the
    forward/backward boundary, the outputs of the model. Before the boundary, outputs can be evicted and computed again,
    too.
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
    """Return whether operation i may overwrite a forward storage, so that its output needs no bytes of its own."""
    return any(problem.producer[s] < problem.backward_start for s in problem.may_overwrite[i])


def arguments(problem: Problem, i: int) -> list[int]:
    """Return forward storages that must be resident while operation i runs, and that `forced_bytes` does not count."""
    counted = problem.returned if i >= problem.backward_start else frozenset[int]()
    return [s for s in problem.reads[i] if problem.producer[s] < problem.backward_start and s not in counted]
