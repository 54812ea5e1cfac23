"""Training steps of known width and growing length. Every value has UNIT bytes, and all forward operations take the
same time."""

from __future__ import annotations

from collections.abc import Callable

from remate_runtime.flat_step import Graph

from .strategy_graphs import Tape

UNIT = 10  # bytes of a value, ns of an operation


def path(n: int) -> Graph:
    """n layers, each of which reads the previous one."""
    tape = Tape()
    x = tape.source("x", UNIT)
    for _ in range(n):
        x = _layer(tape, x)
    return tape.graph(x)


def tree(n: int) -> Graph:
    """A binary tree that reduces about n / 2 leaves, in depth-first order."""
    tape, open_ = Tape(), list[tuple[int, int]]()  # height and value of trees that wait for their neighbour
    for leaf in range(max(2, 1 << (n.bit_length() - 2))):
        height, x = 0, _layer(tape, tape.source(f"x{leaf}", UNIT))
        while open_ and open_[-1][0] == height:
            height, x = height + 1, _layer(tape, open_.pop()[1], x)
        open_.append((height, x))
    return tape.graph(open_[0][1])


def grid(n: int, rows: int = 3) -> Graph:
    """n operations in rows. Each reads the operation above it and the previous one."""
    tape, before = Tape(), list[int]()
    for _ in range(n // rows):
        column: list[int] = []
        for row in range(rows):
            reads = (*column[-1:], *before[row : row + 1])
            column.append(_layer(tape, *(reads or (tape.source("x", UNIT),))))
        before = column
    return tape.graph(before[-1])


def recurrent(n: int) -> Graph:
    """A recurrent network with a gate, a cell state and a hidden state, unrolled over about n / 6 steps of time."""
    tape = Tape()
    weight = tape.source("w", UNIT, "parameter")
    hidden, cell = (tape.forward((weight,), (UNIT,), UNIT, saves_inputs=False) for _ in range(2))
    for _ in range(n // 6):
        gates = _layer(tape, hidden)
        forget, entry = (tape.forward((gates,), (UNIT,), UNIT, saves_inputs=False, saves_output=True) for _ in range(2))
        cell = _layer(tape, _layer(tape, forget, cell), entry)
        hidden = _layer(tape, entry, cell)
    return tape.graph(hidden)


def _layer(tape: Tape, *reads: int) -> int:
    return tape.forward(reads, (UNIT,), UNIT)


FAMILIES: dict[str, Callable[[int], Graph]] = {"path": path, "tree": tree, "grid": grid, "recurrent": recurrent}
