"""The loop between a model of memory and the simulator, the same for every model.

A model overestimates some bytes and misses others, so its budget moves: down by the bytes that the simulator counts
beyond the budget, up by bytes that only the model counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from remate_runtime.flat_step import FlatRecompute

from .base import Candidate, Context, Proposal, Proposals, Request
from .pool import better

CLOSE = 0.004  # share of the budget below which a difference is not worth another solve
STEP = 0.0005  # share of the budget by which a correction downwards exceeds the difference
About = TypeVar("About")


class Answer(msgspec.Struct, Generic[About], frozen=True):
    """A model's schedule for a budget.

    Attributes:
        recomputes: The schedule.
        counted: Bytes of the peak according to the model.
        about: The model's own data.
    """

    recomputes: tuple[FlatRecompute, ...]
    counted: float
    about: About


class FeedbackResult(msgspec.Struct, Generic[About], frozen=True):
    """The result of a feedback loop.

    Attributes:
        best: The best candidate that fits, if any.
        about: The model's data for `best`.
        tried: All candidates.
    """

    best: Candidate | None
    about: About | None
    tried: tuple[Candidate, ...]


def feedback(
    request: Request, context: Context, ask: Callable[[float], Answer[About] | None]
) -> Proposals[FeedbackResult[About]]:
    """Solve a model for corrected budgets, and propose its schedules.

    Args:
        request: The budget and the number of rounds.
        context: The deadline.
        ask: Maps a budget in bytes to the model's schedule, or to None if it has none.
    """
    best: Candidate | None = None
    about: About | None = None
    tried: list[Candidate] = []
    target, overshot = float(request.budget), False
    for _ in range(request.effort.rounds):
        answer = None if context.deadline.stopped() else ask(target)
        if answer is None:
            break
        candidate = yield Proposal(answer.recomputes)
        tried.append(candidate)
        if candidate.peak > request.budget:
            overshot = True
            target -= (candidate.peak - request.budget) + STEP * request.budget
            continue
        if better(best, candidate) is candidate:
            best, about = candidate, answer.about
        unseen = answer.counted - candidate.peak
        if unseen <= CLOSE * request.budget or overshot:
            break
        target += unseen
    return FeedbackResult(best, about, tuple(tried))
