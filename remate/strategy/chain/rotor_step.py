"""Rotor on a training step: builds its chain, and converts sequences of stage runs to recomputations of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from remate_runtime.flat_step import FlatRecompute

from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..blocks.block_plan import BlockPlan
from ..feedback import Answer, feedback
from ..instance import StepInstance
from .chain import Chain, chains_of
from .rotor import ChainStage, SavingWay, StageRun, Table

ROOM = 1.3  # reach of a table over the budget, because the table counts some bytes that are not in memory

Plans = Mapping[int, Sequence[BlockPlan]]


class Programme:
    """The dynamic program over the chain of a step.

    Args:
        chain: The chain.
        budget: Bytes.
        floor: Bytes of the proven floor.
        plans: By stage, plans over its operations to choose from, beside keeping everything.
    """

    def __init__(self, chain: Chain, budget: int, floor: int, plans: Plans | None = None) -> None:
        self.chain, self.budget, self.floor = chain, budget, floor
        self.offered = [_offered(chain, k, plans or {}) for k in range(len(chain.stages))]
        self.links = [_link(chain, k, self.offered[k]) for k in range(len(chain.stages))]
        self._table: Table | None = None

    def ask(self, budget: float) -> Answer[None] | None:
        """Return the fastest schedule of the chain within `budget` bytes."""
        if self._table is None:
            most = min(self.budget * ROOM, max(self.chain.baseline * 1.05, self.budget))
            self._table = Table(self.links, max(1, int(most)))
        moves = self._table.moves(budget)
        return None if moves is None else Answer(self._recomputes(moves), self.budget, None)

    def least(self) -> tuple[FlatRecompute, ...] | None:
        """Return the schedule of least memory.

        It comes from a fine table if that reaches far enough, otherwise from a table up to the baseline's peak.
        """
        for limit in (max(self.budget, 2 * self.floor), self.chain.baseline + 1):
            table = Table(self.links, int(limit))
            least = table.smallest()
            moves = None if least is None else table.moves(least + table.unit)
            if moves is not None:
                return self._recomputes(moves)
        return None

    def _recomputes(self, moves: Sequence[StageRun]) -> tuple[FlatRecompute, ...]:
        return tuple(recomputes(self.chain, moves, self.offered))


def rotor(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Propose optimal persistent schedules of the chains, corrected by the simulator's figures.

    Source:
        O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal checkpointing for heterogeneous
        chains: how to train deep neural networks with limited memory", Inria RR-9302, 2019 (ACM TOMS 2024).
    From the paper:
        The dynamic program of Theorem 1, which is optimal among persistent schedules of a chain.
    Differences:
        Bytes beside the chain depend on the stage, and the first run of a stage costs nothing, because every schedule
        has it. Values that reach far are kept or computed again from the inputs, because real steps are not chains. The
        simulator corrects the budget.
    """
    yield from programmed(instance, request, context, [(chain, None) for chain in chains_of(instance)])


def programmed(
    instance: StepInstance, request: Request, context: Context, chains: Iterable[tuple[Chain, Plans | None]]
) -> Proposals[tuple[Candidate, ...]]:
    """Propose schedules of these chains, with plans of their stages. If nothing fits, propose the schedules of least
    memory, too.

    Returns:
        All candidates, whether they fit or not.
    """
    programmes = [Programme(chain, request.budget, instance.floor, plans) for chain, plans in chains]
    tried: list[Candidate] = []
    for programme in programmes:
        outcome = yield from feedback(request, context, programme.ask)
        tried += outcome.tried
    if all(candidate.peak > request.budget for candidate in tried):
        for least in filter(None, (programme.least() for programme in programmes)):
            tried.append((yield Proposal(least)))
    return tuple(tried)


def recomputes(chain: Chain, moves: Sequence[StageRun], offered: Sequence[Sequence[BlockPlan]]) -> list[FlatRecompute]:
    """Return recomputations: every run of a stage after its first run becomes recomputations of the operations it
    needs."""
    result: list[FlatRecompute] = []
    waiting: list[int] = []
    ran: set[int] = set()
    backward_start = chain.problem.backward_start
    for n, move in enumerate(moves):
        k, stage = move.stage, chain.stages[move.stage]
        if move.kind == "back":
            first, end = stage.backward
            if first == end:
                continue  # waiting operations belong to a stage below
            result += [FlatRecompute(f, first) for f in waiting]
            waiting.clear()
            result += [
                _mapped(stage.forward[0], first, backward_start, chain, k, r) for r in offered[k][move.way].recomputes
            ]
        elif k not in ran:
            ran.add(k)
        elif move.kind == "again":
            waiting += stage.makes
        else:
            further = n + 1 < len(moves) and moves[n + 1].stage == k + 1
            waiting += sorted({*stage.needs, *stage.makes}) if further else stage.needs
    return _free(chain, sorted(result, key=lambda r: r.before))  # stable


def _free(chain: Chain, recomputes: list[FlatRecompute]) -> list[FlatRecompute]:
    """Add recomputations of cheap lasting storages before their first reader after the forward/backward boundary."""
    problem, backward_start = chain.problem, chain.problem.backward_start
    for s in sorted(chain.lasting.intersection(chain.cheap)):
        readers = frozenset(problem.readers[s])
        late = (
            n
            for n, recompute in enumerate(recomputes)
            if recompute.before >= backward_start and recompute.op in readers
        )
        at, first = next(late, None), next((i for i in problem.readers[s] if i >= backward_start), None)
        if at is not None and (first is None or recomputes[at].before <= first):
            first = recomputes[at].before
        elif first is not None:
            at = next((n for n, recompute in enumerate(recomputes) if recompute.before > first), len(recomputes))
        else:
            continue
        recomputes[at:at] = [FlatRecompute(f, first) for f in chain.cheap[s]]
    return recomputes


def _mapped(
    begin: int, first: int, backward_start: int, chain: Chain, k: int, recompute: FlatRecompute
) -> FlatRecompute:
    """Return a recomputation of a plan of stage k as one of the whole step."""
    local = chain.leaf[k].graph.backward_start
    before = first + recompute.before - local if recompute.before >= local else begin + recompute.before
    return FlatRecompute(begin + recompute.op, before)


def _offered(chain: Chain, k: int, plans: Plans) -> list[BlockPlan]:
    return [chain.keep[k], *(plan for plan in plans.get(k, ()) if plan.recomputes)]


def _link(chain: Chain, k: int, offered: Sequence[BlockPlan]) -> ChainStage:
    problem, stage, keep = chain.problem, chain.stages[k], chain.keep[k]

    def time(operations: Sequence[int]) -> int:
        return sum(problem.time[f] for f in operations)

    beside = chain.in_backward[k]
    ways = tuple(
        SavingWay(
            chain.retained(k, plan) + _waiting(chain, k, plan),
            plan.forward_peak,
            beside + plan.backward_peak,
            plan.time - keep.time,
        )
        for plan in offered
    )
    every = sorted({*stage.needs, *stage.makes})
    return ChainStage(
        stage.carried,
        chain.drop[k].forward_peak,
        chain.before_backward[k],
        time(stage.makes),
        time(every),
        time(stage.needs),
        ways,
    )


def _waiting(chain: Chain, k: int, plan: BlockPlan) -> int:
    """Return bytes of cheap inputs that stage k computed itself and that its backward, or a recomputation in it,
    still reads."""
    problem, stage = chain.problem, chain.stages[k]
    late = [*range(*stage.backward), *(chain.leaf[k].operations[recompute.op] for recompute in plan.recomputes)]
    read = {s for i in late for s in problem.reads[i]}
    return sum(
        problem.size[s] for s in read & chain.cheap.keys() - chain.lasting if problem.producer[s] < stage.forward[0]
    )


ROTOR = Strategy(
    "rotor",
    "dynamic program over a chain of stages: the optimal persistent schedule",
    rotor,
    reference="O. Beaumont et al., Optimal checkpointing for heterogeneous chains, Inria RR-9302, 2019",
    needs=frozenset({"backward", "chain"}),
)
