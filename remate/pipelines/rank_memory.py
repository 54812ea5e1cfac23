"""The peak of a rank over one step of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .order import Action, PipelineOrder
from .stage_use import StageUse


class RankPeak(msgspec.Struct, frozen=True):
    """The peak of a rank.

    Attributes:
        peak: Bytes beside parameters, buffers of the model, optimizer state and the inputs of the first stage.
        buffers: Those of them that torch's buffers for inputs and gradients take, in every step.
        at: The action with the peak.
    """

    peak: int
    buffers: int
    at: Action | None = None


class _Counts:
    """Numbers of microbatches of a stage: in flight, with gradients that wait to be requested, and after backward."""

    def __init__(self) -> None:
        self.in_flight = self.waiting = self.backwards = 0
        self.has_gradients = False

    def end(self, action: Action) -> None:
        """Count an action that has ended."""
        self.in_flight += action.kind == "F"
        self.backwards += action.is_backward
        self.waiting += (action.kind == "I") * action.is_backward - (action.kind == "W") * (not action.is_backward)
        self.has_gradients |= action.kind in ("B", "W")


def rank_peak(order: PipelineOrder, rank: int, uses: Mapping[int, StageUse]) -> RankPeak:
    """Return the peak of a rank.

    A scheduled stage computes all gradients in one backward. Under zero-bubble schedules, stages other than the first
    do that in the backward for inputs, and keep the gradients of parameters until these are requested.

    Args:
        order: The actions.
        rank: The rank.
        uses: By stage, what a microbatch takes.
    """
    stages = order.stages_of(rank)
    counts = {stage: _Counts() for stage in stages}
    buffers = sum(_buffers(order, stage, uses[stage]) for stage in stages)
    peak, where = 0, None
    for action in order.ranks[rank]:
        use, count = uses[action.stage], counts[action.stage]
        now = 0
        if action.kind == "F":
            now = use.forward_peak
        elif action.is_backward:
            count.in_flight -= 1
            adds = count.has_gradients and action.kind != "I"
            now = use.later_backward if adds else use.first_backward
        held = buffers + sum(_held(order, stage, uses[stage], counts[stage]) for stage in stages)
        if held + now > peak:
            peak, where = held + now, action
        count.end(action)
    merged = order.microbatches * uses[order.stages - 1].outputs if order.stages - 1 in stages else 0
    held = buffers + sum(_held(order, stage, uses[stage], counts[stage]) for stage in stages)
    return RankPeak(max(peak, held + merged), buffers, where)


def _buffers(order: PipelineOrder, stage: int, use: StageUse) -> int:
    received = (use.inputs if stage > 0 else 0) + (use.tangents if stage < order.stages - 1 else 0)
    return order.microbatches * received


def _held(order: PipelineOrder, stage: int, use: StageUse, count: _Counts) -> int:
    """Return the bytes that a stage holds between its actions.

    torch keeps what it has sent. Under 1F1B that is one output and the latest gradient of inputs; under other schedules
    all of them, to the end of the step. A last stage keeps all outputs and losses.
    """
    last = stage == order.stages - 1
    sent = min(count.backwards, 1) if order.schedule == "1F1B" else count.backwards
    waiting = use.gradients + use.tangents * last
    return (
        count.in_flight * use.kept
        + count.waiting * waiting
        + count.has_gradients * use.gradients
        + sent * use.input_gradients
        + (count.backwards if last else sent) * use.outputs
        + (count.in_flight + count.backwards) * use.loss
    )
