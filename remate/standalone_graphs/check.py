"""The cost of a sequence of executions by definition, from the instance alone and without code of the planner.

Memory and time are defined as in Moccasin (B. Bartan et al., Efficient tensor rematerialization for neural networks,
ICML 2023): every execution of a node produces its outputs. An output is in memory from the execution that produces it
to the last execution that reads it before it is produced again; an output that nothing reads is in memory while it
is produced. Memory at an execution is the sum of these outputs and the workspace of what runs. Time is the sum over all
executions. Two rules are added: pinned outputs, once produced for the last time, stay to the end; and an output that
takes the bytes of an input at the input's last read counts only from the next execution on. An output that a page names
is not in memory from the page's `gone` to its `back`, and nothing may read or produce it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InstanceError
from .form import BareInstance, BareNode, inputs
from .result import BarePage


class Taken(NamedTuple):
    """The cost of a sequence.

    Attributes:
        peak: Bytes.
        time: In the unit of the instance.
        order: Every node, in the order of first executions.
        recomputes: Number of executions beyond the first of each node.
    """

    peak: int
    time: int
    order: tuple[str, ...]
    recomputes: int


class _Life:
    """A live range of an output: produced at `birth`, last read at `last`. If `held`, it lasts to the end."""

    def __init__(self, output: str, nbytes: int, birth: int) -> None:
        self.output, self.nbytes, self.birth, self.last, self.held = output, nbytes, birth, birth, False


def check_sequence(bare: BareInstance, sequence: Sequence[str], pages: Sequence[BarePage] = ()) -> Taken:
    """Simulate a sequence of node ids, with outputs in storage.

    Args:
        bare: The instance.
        sequence: Ids of nodes in order of execution.
        pages: Outputs in storage.

    Raises:
        InstanceError: A node is unknown, never runs, or runs again although it is not recomputable; an output is read
            before it is produced; or an output is in storage when it is needed.
    """
    nodes = {node.id: node for node in bare.nodes}
    reads, current = inputs(bare), dict[str, _Life]()
    lives, time = list[_Life](), 0
    ran: dict[str, None] = {}
    for at, name in enumerate(sequence):
        if name not in nodes:
            raise InstanceError(f"sequence[{at}]: {name[:80]!r} is not a node")
        if name in ran and not nodes[name].recomputable:
            raise InstanceError(f"sequence[{at}]: {name!r} runs again, although it is not recomputable")
        for output in reads[name]:
            life = current.get(_full(output))
            if life is None:
                raise InstanceError(f"sequence[{at}]: {name!r} reads {output!r} before it is produced")
            life.last = at
        for number, nbytes in enumerate(nodes[name].bytes):
            current[f"{name}:{number}"] = life = _Life(f"{name}:{number}", nbytes, at)
            lives.append(life)
        time += nodes[name].time
        ran.setdefault(name)
    never = next((name for name in nodes if name not in ran), None)
    if never is not None:
        raise InstanceError(f"{never!r} never runs")
    for output in bare.pins:
        current[_full(output)].held = True
    away = _away(bare, sequence, lives, pages)
    return Taken(_peak(sequence, nodes, lives, away), time, tuple(ran), len(sequence) - len(ran))


def _away(
    bare: BareInstance, sequence: Sequence[str], lives: Sequence[_Life], pages: Sequence[BarePage]
) -> list[tuple[int, int, int]]:
    """Return bytes and stretches of pages. Raise InstanceError for a page that is not allowed."""
    reads, absences = inputs(bare), list[tuple[int, int, int]]()
    for number, page in enumerate(pages):
        output, where = _full(page.output), f"pages[{number}]: {page.output[:80]!r}"
        end = len(sequence)
        life = next(
            (x for x in lives if x.output == output and x.birth < page.gone <= (end if x.held else x.last)), None
        )
        if life is None or not page.gone < page.back <= (end if life.held else life.last):
            raise InstanceError(f"{where} is not in memory before {page.gone}, or not read after {page.back}")
        for at in range(page.gone, page.back):
            if sequence[at] == output.partition(":")[0] or output in map(_full, reads[sequence[at]]):
                raise InstanceError(f"{where} is in storage, and sequence[{at}] needs it")
        if any(
            other.gone < page.back and page.gone < other.back for other in pages[:number] if other.output == page.output
        ):
            raise InstanceError(f"{where} is in storage twice")
        absences.append((life.nbytes, page.gone, page.back))
    return absences


def _full(output: str) -> str:
    return output if ":" in output else f"{output}:0"


def _peak(
    sequence: Sequence[str], nodes: dict[str, BareNode], lives: list[_Life], away: list[tuple[int, int, int]]
) -> int:
    born = [0] * (len(sequence) + 1)
    died = [0] * (len(sequence) + 1)
    for nbytes, gone, back in away:
        died[gone] += nbytes
        born[back] += nbytes
    dying: dict[tuple[int, str], _Life] = {}
    for life in lives:
        born[life.birth] += life.nbytes
        died[len(sequence) if life.held else life.last + 1] += life.nbytes
        if not life.held and life.last > life.birth:
            dying[life.last, life.output] = life
    peak = in_memory = 0
    for at, name in enumerate(sequence):
        in_memory += born[at] - died[at]
        over = next((o for o in nodes[name].in_place if (at, _full(o)) in dying), None)
        peak = max(peak, in_memory + nodes[name].workspace - (nodes[name].bytes[0] if over is not None else 0))
    return peak
