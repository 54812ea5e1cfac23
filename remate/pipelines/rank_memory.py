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
    """Numbers of microbatches of a stage: in flight, with gradients that wait to be requested, after backward, and with
    complete gradients; whether the parameters are gathered, and the gradients reduced, if FSDP2 shards the stage."""

    def __init__(self) -> None:
        self.in_flight = self.waiting = self.backwards = self.complete = 0
        self.has_gradients = self.gathered = self.reduced = False

    def end(self, action: Action) -> None:
        """Count an action that has ended."""
        self.in_flight += action.kind == "F"
        self.backwards += action.is_backward
        self.waiting += (action.kind == "I") * action.is_backward - (action.kind == "W") * (not action.is_backward)
        self.has_gradients |= action.kind in ("B", "W")
        self.complete += action.kind in ("B", "W")
        self.gathered = True


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

    def held() -> int:
        return buffers + sum(_held(order, stage, uses[stage], counts[stage]) for stage in stages)

    for action in order.ranks[rank]:
        use, count = uses[action.stage], counts[action.stage]
        now = 0
        if action.kind == "F":
            now = use.forward_peak + (0 if count.gathered else use.whole + use.gathering * (len(stages) == 1))
        elif action.is_backward:
            count.in_flight -= 1
            adds = count.has_gradients and action.kind != "I"
            now = use.later_backward if adds else use.first_backward
        moments = [held() + now]
        count.end(action)
        if count.complete == order.microbatches:
            moments.append(held() + use.reducing)
            count.reduced = True
        if max(moments) > peak:
            peak, where = max(moments), action
    merged = order.microbatches * uses[order.stages - 1].outputs if order.stages - 1 in stages else 0
    return RankPeak(max(peak, held() + merged), buffers, where)


def _buffers(order: PipelineOrder, stage: int, use: StageUse) -> int:
    received = (use.inputs if stage > 0 else 0) + (use.tangents if stage < order.stages - 1 else 0)
    return order.microbatches * received


def _held(order: PipelineOrder, stage: int, use: StageUse, count: _Counts) -> int:
    """Return the bytes that a stage holds between its actions.

    torch keeps what it has sent. Under 1F1B that is one output and the latest gradient of inputs; under other schedules
    all of them, to the end of the step. A last stage keeps all outputs and losses.
    """
    last = stage == order.stages - 1
    several = len(order.stages_of(order.rank_of(stage))) > 1  # torch starts to gather all stages of such a rank at once
    sharded = use.shards if count.reduced else use.whole if count.gathered else use.gathering * several
    sent = min(count.backwards, 1) if order.schedule == "1F1B" else count.backwards
    waiting = use.gradients + use.tangents * last
    return (
        count.in_flight * use.kept
        + count.waiting * waiting
        + (count.has_gradients and not (count.reduced and use.whole)) * use.gradients
        + sharded
        + sent * use.input_gradients
        + (count.backwards if last else sent) * use.outputs
        + (count.in_flight + count.backwards) * use.loss
    )
