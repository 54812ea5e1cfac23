"""A step as arrays, for local search, which reads it thousands of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .problem import Problem


class Lists:
    """Short lists of numbers, one per row, in one array."""

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        rows = list(rows)
        self.start = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=self.start[1:])
        self.flat = np.array([entry for row in rows for entry in row], dtype=np.int64)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries of some rows, row after row.

        Args:
            rows: Numbers of rows; -1 is the last row.

        Returns:
            For each entry, the position in `rows` that it comes from; and the entries.
        """
        rows = rows % (len(self.start) - 1)
        begin, count = self.start[rows], self.start[rows + 1] - self.start[rows]
        skipped = np.cumsum(count) - count
        entries = np.arange(int(count.sum())) + np.repeat(begin - skipped, count)
        return np.repeat(np.arange(len(rows)), count), self.flat[entries]


class StepArrays:
    """A step as arrays. The last row of lists by operation is the forward/backward boundary. It reads the outputs of
    the model and the new contents of buffers, and takes no time.

    Attributes:
        real: Executed operations, ascending.
        reads: Storages that each operation reads.
        writes: Storages that each operation writes.
        may_overwrite: Storages that each operation may overwrite.
        buffers: Buffers whose old contents each operation reads.
        size: Bytes by storage.
        returned: By storage, whether it is an output of the model.
        goes: By storage, whether it has bytes and a recomputation can compute it.
        gradients: Storages of gradients.
        delays: Deliveries that each operation delays when it runs again.
        deliveries: The operation after which each delivery takes place if nothing delays it.
        delivered: Gradients that are freed when they are delivered, and the delivery of each.
        copies: Bytes of old contents by buffer.
        time: ns by operation.
        workspace: Bytes by operation.
        state: Bytes of the generator's state by operation.
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
