"""The loop between a model of memory and the simulator, the same for every model.

A model is conservative in places and blind in others, so its budget is moved: down by the bytes that the simulator
counts beyond the budget, up by bytes that the model counted and the simulator does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from remate_runtime.flat_step import FlatRecompute

from .base import Candidate, Context, Proposal, Proposals, Request
from .pool import better

CLOSE = 0.004  # share of the budget that is not worth another solve
STEP = 0.0005  # share of the budget that a correction downwards adds
About = TypeVar("About")


class Answer(msgspec.Struct, Generic[About], frozen=True):
    """What a model says to a budget. counted: bytes, the peak as the model sees it. about: the model's own notes."""

    recomputes: tuple[FlatRecompute, ...]
    counted: float
    about: About


class Heard(msgspec.Struct, Generic[About], frozen=True):
    """What came of it. best: the best candidate that fits, if any does, and the model's notes to it. tried: all."""

    best: Candidate | None
    about: About | None
    tried: tuple[Candidate, ...]


def feedback(
    request: Request, context: Context, ask: Callable[[float], Answer[About] | None]
) -> Proposals[Heard[About]]:
    """Ask a model again and again, and propose what it answers. ask: a budget in bytes -> its answer, None if it has
    none."""
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
    return Heard(best, about, tuple(tried))
