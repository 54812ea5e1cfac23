"""Moccasin: the model of `retention_intervals` in its two phases, by OR-Tools' CP-SAT (the extra `cpsat`)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from remate_runtime.extras import require
from remate_runtime.flat_step import FlatRecompute

from ...errors import NotApplicableError
from ..base import Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..instance import StepInstance
from ..local.polish import pruned

COPIES = 2  # intervals of an operation; more gained nothing in the paper's experiments
WORK = 0.1  # deterministic seconds of CP-SAT per node of the effort, in each phase; one takes about 9 seconds of a core
LARGEST = 600  # operations of a step, unless a limit in seconds ends the search
GRACE = 5.0  # seconds in which the program may return its best solution after the deadline
POLL = 0.2
WORKER = "remate.strategy.cpsat.retention_intervals"


class IntervalQuery(msgspec.Struct, frozen=True):
    """A query. Executed operations are numbered in step order.

    Attributes:
        time: ns by operation.
        written: Bytes that each operation writes.
        workspace: Bytes by operation.
        sources: By operation, the operations whose outputs it reads.
        again: By operation, whether it may run again.
        until: By operation, the stage to whose end its results must stay.
        fixed: (bytes, first stage, last stage) in memory in any schedule.
        copies: Most intervals of an operation.
        budget: Bytes.
        phase: 1 for the least excess over the budget, 2 for the least time within it.
        work: Deterministic seconds.
        seconds: Seconds on the clock; None for no limit.
        start: By operation, stages in which it runs again in a first solution.
    """

    time: tuple[int, ...]
    written: tuple[int, ...]
    workspace: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    again: tuple[bool, ...]
    until: dict[int, int]
    fixed: tuple[tuple[int, int, int], ...]
    copies: int
    budget: int
    phase: int
    work: float
    seconds: float | None = None
    start: dict[int, tuple[int, ...]] = {}


class Answered(msgspec.Struct, frozen=True):
    """The solver's solution.

    Attributes:
        again: By operation, stages in which it runs again.
        over: Bytes over the budget.
    """

    again: dict[int, tuple[int, ...]]
    over: int


def moccasin(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Minimise the excess first, then the time within the budget.

    Source:
        B. Bartan, H. Li, H. Teague, C. Lott, B. Dilkina, "Moccasin: Efficient tensor rematerialization for neural
        networks", ICML 2023.
    From the paper:
        The constraint program of retention intervals with a given order, at most two intervals per operation, and two
        phases, solved by CP-SAT.
    Differences:
        Effort is CP-SAT's deterministic time with one worker and a fixed seed, because results must not depend on the
        machine; the paper allows 30 minutes on the clock. Moments have gaps, which CP-SAT presolves faster. Workspace,
        pinned results and tangents are added, because real steps have them. Steps too large for the effort are refused,
        unless a limit in seconds ends the search.

    Raises:
        MissingExtraError: OR-Tools is not installed.
    """
    require("the strategy moccasin", "cpsat")
    if len(instance.graph.operations) > LARGEST and context.deadline.remaining() == float("inf"):
        raise NotApplicableError(
            f"the strategy 'moccasin' solves steps of up to {LARGEST:,} operations without --time-limit, and this step "
            f"has {len(instance.graph.operations):,}\n  hint: use --time-limit, another strategy, or auto"
        )
    operations = [i for i, real in enumerate(instance.problem.real) if real]
    requested = _question(instance, operations, request)
    first = _answer(requested, context.deadline)
    if first is None or context.deadline.stopped():
        return
    yield Proposal(_recomputes(instance, operations, first.again))
    best = None if first.over else _answer(replace(requested, phase=2, start=first.again), context.deadline)
    if best is not None:
        yield Proposal(_recomputes(instance, operations, best.again))


def _question(instance: StepInstance, operations: list[int], request: Request) -> IntervalQuery:
    problem = instance.problem
    number = {i: n for n, i in enumerate(operations)}
    last = len(operations) - 1
    backward_start = next((n for n, i in enumerate(operations) if i >= problem.backward_start), last)
    until = {number[problem.producer[s]]: backward_start for s in problem.until_backward_start}
    for s in problem.pinned:
        producer = number[problem.producer[s]]
        until[producer] = max(until.get(producer, 0), number.get(problem.held_until(s), last))
    return IntervalQuery(
        tuple(problem.time[i] for i in operations),
        tuple(sum(problem.size[s] for s in problem.writes[i]) for i in operations),
        tuple(problem.workspace[i] for i in operations),
        tuple(tuple(sorted({number[problem.producer[s]] for s in problem.reads[i]})) for i in operations),
        tuple(i < problem.backward_start and i not in problem.once and n < last for n, i in enumerate(operations)),
        until,
        tuple((nbytes, backward_start, number.get(end, last)) for nbytes, end in problem.tangents),
        COPIES,
        request.budget,
        1,
        WORK * request.effort.nodes,
    )


def _answer(requested: IntervalQuery, deadline: Deadline) -> Answered | None:
    """Solve a query by CP-SAT in a process of its own. Returns None if there is no solution at the deadline."""
    seconds = deadline.remaining()
    limited = replace(requested, seconds=seconds if seconds < float("inf") else None)
    question: bytes | None = msgspec.json.encode(limited)
    command, until = [sys.executable, "-m", WORKER], float("inf")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        while True:
            try:
                output, _ = worker.communicate(question, timeout=POLL)
                break
            except subprocess.TimeoutExpired:
                question = None
            if deadline.stopped():  # Ctrl-C at a terminal reaches the program, too
                until = min(until, time.monotonic() + GRACE)
            if time.monotonic() > until:
                worker.kill()
    return msgspec.json.decode(output, type=Answered | None) if worker.returncode == 0 else None


def _recomputes(
    instance: StepInstance, operations: list[int], again: Mapping[int, tuple[int, ...]]
) -> tuple[FlatRecompute, ...]:
    places = sorted((t, n) for n, stages in again.items() for t in stages)
    return tuple(pruned(instance.problem, [FlatRecompute(operations[n], operations[t]) for t, n in places]))


MOCCASIN = Strategy(
    "moccasin",
    "constraint program: intervals in which results of operations are retained",
    moccasin,
    reference="B. Bartan et al., Moccasin, ICML 2023",
    solver="cp-sat",
)
