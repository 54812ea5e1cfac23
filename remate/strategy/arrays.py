"""What local search asks of a step thousands of times, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .problem import Problem


class Lists:
    """Short lists of numbers, by row, in one array."""

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        rows = list(rows)
        self.start = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=self.start[1:])
        self.flat = np.array([entry for row in rows for entry in row], dtype=np.int64)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of these rows (-1: the last row), row after row: from which of `rows` each comes, and the
        entry."""
        rows = rows % (len(self.start) - 1)
        begin, count = self.start[rows], self.start[rows + 1] - self.start[rows]
        skipped = np.cumsum(count) - count
        entries = np.arange(int(count.sum())) + np.repeat(begin - skipped, count)
        return np.repeat(np.arange(len(rows)), count), self.flat[entries]


class StepArrays:
    """A step.

    real: operations that are executed, ascending. reads, writes, may_overwrite, buffers: storages by operation
    (`buffers`: buffers whose old contents are kept); the last row is the forward/backward boundary, which reads the
    outputs of the model and the new contents of buffers. delays: deliveries that an operation delays when it runs
    again. deliveries: the operation after which each delivery takes place otherwise. delivered: gradients that are
    freed then, and the delivery of each. size, returned, goes: by storage; goes: the storage takes room, and a
    recomputation can compute it again. copies: bytes by buffer. time, workspace, state: by operation, and zero at the
    forward/backward boundary.
    """

    def __init__(self, problem: Problem) -> None:
        self.real = np.flatnonzero(problem.real)
        self.reads = Lists([*problem.reads, problem.read_at_backward_start])
        self.writes = Lists([*problem.writes, ()])
        self.may_overwrite = Lists([*problem.may_overwrite, ()])
        self.buffers = Lists([*problem.reads_of_buffers, ()])
        self.size = np.array(problem.size, dtype=np.int64)
        self.returned = np.zeros(len(problem.size), dtype=bool)
        self.returned[list(problem.returned)] = True
        producer = np.array(problem.producer, dtype=np.int64)
        self.goes = (self.size > 0) & (producer < problem.backward_start)
        self.gradients = np.array(sorted(problem.gradients), dtype=np.int64)
        self.delays = Lists([*problem.delays, *([()] * (len(problem.real) - len(problem.delays) + 1))])
        self.deliveries = np.array(problem.deliveries, dtype=np.int64)
        self.delivered = np.array(sorted(problem.delivery.items()), dtype=np.int64).reshape(-1, 2).T
        self.copies = np.zeros(len(problem.size), dtype=np.int64)
        self.copies[list(problem.copies)] = list(problem.copies.values())
        self.time = np.array([*problem.time, 0], dtype=np.int64)
        self.workspace = np.array([*problem.workspace, 0], dtype=np.int64)
        self.state = np.array([*problem.state, 0], dtype=np.int64)
