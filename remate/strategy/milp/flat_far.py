"""The flat model for steps whose values are read far away: recurrences unrolled over time, a head over all their
states.

The flat model keeps values that cross the boundary of a segment, and has the results of a recomputation from its first
possible need in a stage on. Both are too expensive here, so this model differs in two ways:

* a storage that many segments read, computed from the step's inputs alone (an embedding of all times), may be
recomputed in any of the stages that read it;
* a stage ends where much memory is freed, for example after the head's gradient: values that are read only after that
need not be in memory before.

If the values that cross do not all fit, the value that gathers them from many segments (the stack of all states) is
kept instead. Its arguments may be freed, if no other recomputable operation of a different segment reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from remate_runtime.link import Execution, link, simulate

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from ..segments import Segments, segments
from .flat import allowed_stages
from .formulation import Formulation
from .highs import SOLVER
from .retention import corrected, formulation, smallest
from .windows import RecomputeWindows, recompute_windows

LENGTHS = (40, 160)  # operations in a segment
MANY = 3  # least number of other segments that a gathered value comes from, or that read a spread value
DROP = 0.05  # share of the peak that is freed where a stage ends


class Far(msgspec.Struct, frozen=True):
    """The differences between this model and the flat one.

    Attributes:
        spread: Storages that may be computed again in any stage.
        gathered: Storages that are kept in place of `loose`.
        loose: Storages that cross a boundary and may be freed.
    """

    spread: frozenset[int]
    gathered: frozenset[int]
    loose: frozenset[int]


def flat_far(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Solve models of long segments. If nothing fits, keep gathering values.

    Neighbourhoods of solutions are skipped. They take longest and gain least here, because cells have the same form and
    the relaxation is nearly integral.

    Source:
        No paper; the formulation is remate's.
    From the paper:
        Nothing.
    Differences:
        As `flat`, but values that many segments read may be computed again in any stage, and a value that gathers many
        others may be kept in their place.
    """
    for gather in (False, True):
        for length, model in _models(instance, context, gather):
            yield from corrected(request, context, model, None, f"far {length}")
        if "flat-far" in context.fitted:
            return
    for _, model in _models(instance, context, gather=True):
        yield from smallest(instance, request, context, model)


def _models(instance: StepInstance, context: Context, gather: bool) -> Iterator[tuple[int, Formulation]]:
    """Yield the models that differ from the flat one, with the length of their segments, until the deadline."""
    for length in LENGTHS:
        model = None if context.deadline.stopped() else instance.view(_model, length, gather)
        if model is not None:
            yield length, model


def _model(instance: StepInstance, length: int, gather: bool) -> Formulation | None:
    """Return the model, or None if it would equal the flat model."""
    windows = far_windows(instance, length, gather)
    return None if windows is None else formulation(instance, windows)


def far_windows(instance: StepInstance, length: int, gather: bool) -> RecomputeWindows | None:
    """Return the windows of the model, or None if the step has no far values.

    Args:
        instance: The step.
        length: Operations in a segment.
        gather: Whether to keep gathering values.
    """
    problem = instance.problem
    split = segments(problem, length)
    far = far_storages(problem, split, gather)
    if not (far.loose or (far.spread and not gather)):
        return None
    stage = divided(split.stage, instance.view(held))
    kept = (split.boundary - far.spread - far.loose) | far.gathered
    return recompute_windows(problem, stage, allowed_stages(problem, replace(split, stage=stage), 0, kept))


def far_storages(problem: Problem, split: Segments, gather: bool) -> Far:
    """Return the storages that are treated differently. gather: whether gathering storages may be kept."""
    of, backward_start = split.of, problem.backward_start

    def elsewhere(f: int) -> set[int]:
        """Return other segments that compute arguments of f."""
        return {of[problem.producer[s]] for s in problem.reads[f]} - {of[f]}

    gathers = {f for f in problem.forward if gather and len(elsewhere(f)) >= MANY}
    spread, loose = set[int](), set[int]()
    for s in sorted(split.boundary, key=problem.producer.__getitem__):
        f = problem.producer[s]
        outside = {of[i] for i in problem.readers[s] if i < backward_start and of[i] > of[f] and i not in gathers}
        if not outside and not gathers.isdisjoint(problem.readers[s]):
            loose.add(s)
        elif len(outside) >= MANY and f not in gathers and spread.issuperset(problem.reads[f]):
            spread.add(s)
    gathered = (s for f in gathers for s in problem.writes[f])
    return Far(frozenset(spread), frozenset(gathered), frozenset(loose))


def held(instance: StepInstance) -> tuple[int, ...]:
    """Return bytes at each operation of the backward, without recomputation; -1 at views."""
    linked = link(instance.graph)
    at = dict.fromkeys(range(instance.graph.backward_start, len(instance.graph.operations)), -1)
    for event, nbytes in zip(linked.events, simulate(linked).during, strict=True):
        if isinstance(event, Execution) and event.op in at and instance.problem.real[event.op]:
            at[event.op] = nbytes
    return tuple(at.values())


def divided(stage: tuple[int, ...], held: tuple[int, ...]) -> tuple[int, ...]:
    """Return stages that also end where much memory is freed.

    Args:
        stage: By index of backward operation, from the boundary.
        held: Bytes, in the same way.
    """
    least, stages_ = DROP * max(held, default=0), list[int]()
    before, new, last = -1, -1, -1  # the stage, its new number, and the bytes held
    for k, nbytes in zip(stage, held, strict=True):
        if k != before or 0 <= nbytes < last - least:
            new += 1
        before, last = k, nbytes if nbytes >= 0 else last
        stages_.append(new)
    return tuple(stages_)


FLAT_FAR = Strategy(
    "flat-far",
    "integer program: as flat, for values that are read far away (unrolled recurrences)",
    flat_far,
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
