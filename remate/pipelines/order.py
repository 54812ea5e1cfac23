"""The actions of a pipeline schedule, by rank, as torch's own schedule classes order them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from remate_runtime.format import did_you_mean
from remate_runtime.torch_private.distributed import pipeline_actions

from ..errors import UnknownNameError

SINGLE = ("GPipe", "1F1B")  # schedules with one stage on each rank
MULTI = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
SCHEDULES = (*SINGLE, *MULTI)

Kind = Literal["F", "B", "I", "W"]


class Action(msgspec.Struct, frozen=True):
    """An action of a rank.

    Attributes:
        stage: Index of the stage.
        kind: Forward, full backward, backward for inputs, or backward for parameters.
        microbatch: Index of the microbatch.
    """

    stage: int
    kind: Kind
    microbatch: int

    @property
    def is_backward(self) -> bool:
        """Whether a scheduled stage runs its backward in this action.

        It computes all gradients at once: in the backward for inputs, or for parameters in the first stage, for which
        torch skips the backward for inputs.
        """
        return self.kind == "B" or self.kind == ("W" if self.stage == 0 else "I")


class PipelineOrder(msgspec.Struct, frozen=True):
    """The actions of a pipeline step.

    Attributes:
        schedule: Name of torch's schedule.
        stages: Number of stages.
        microbatches: Number of microbatches.
        ranks: The actions of each rank, in the order in which it runs them.
    """

    schedule: str
    stages: int
    microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        return tuple(sorted({action.stage for action in self.ranks[rank]}))

    def rank_of(self, stage: int) -> int:
        """Return the rank of a stage."""
        return next(rank for rank in range(len(self.ranks)) if stage in self.stages_of(rank))

    def in_flight(self, stage: int) -> int:
        """Return the most microbatches of a stage between their forward and their backward."""
        most = now = 0
        for action in self.ranks[self.rank_of(stage)]:
            if action.stage == stage:
                now += 1 if action.kind == "F" else -action.is_backward
                most = max(most, now)
        return most


def schedule_named(text: str) -> str:
    """Return the name of a schedule as torch spells it. Raises UnknownNameError."""
    for name in SCHEDULES:
        if name.lower() == text.lower():
            return name
    hint = did_you_mean(text.lower(), [name.lower() for name in SCHEDULES], ", ".join(SCHEDULES))
    raise UnknownNameError(f"there is no pipeline schedule {text!r}\n  hint: {hint}")


def pipeline_order(schedule: str, stages: int, microbatches: int, ranks: int | None = None) -> PipelineOrder:
    """Return the actions of a pipeline step.

    Args:
        schedule: Name of torch's schedule; case does not matter.
        stages: Number of stages.
        microbatches: Number of microbatches.
        ranks: Number of ranks. Default: one for each stage, or one for two stages if the schedule needs that.

    Raises:
        UnknownNameError: The schedule does not exist, or it does not exist for these numbers.
    """
    name = schedule_named(schedule)
    ranks = ranks or (stages if name in SINGLE else stages // 2)
    per_rank, rest = divmod(stages, max(1, ranks))
    least, most = (1, 1) if name in SINGLE else (2, 2 if name in ("ZBVZeroBubble", "DualPipeV") else stages)
    if stages < 1 or rest or not least <= per_rank <= most:
        needed = "one stage" if name in SINGLE else "two stages" if most == 2 else "two or more stages, equally many,"
        raise UnknownNameError(
            f"{name} needs {needed} on each rank, and there are {stages} stages on {ranks} ranks\n  hint: "
            f"--stages {ranks * least}, or another schedule: {', '.join(SCHEDULES)}"
        )
    try:
        by_rank = pipeline_actions(name, ranks, microbatches, per_rank)
    except (ValueError, RuntimeError, AssertionError) as error:
        raise UnknownNameError(
            f"torch has no schedule {name} for {stages} stages and {microbatches} microbatches: {error}"
            "\n  hint: give it more microbatches, a multiple of the ranks"
        ) from None
    rows = tuple(tuple(_actions(row)) for row in by_rank)
    _check(name, rows, stages, microbatches)
    return PipelineOrder(name, stages, microbatches, tuple(_numbered(row, microbatches) for row in rows))


def _actions(row: Iterable[Any]) -> Iterator[Action]:
    """Yield the computations of a rank. Gaps, communication and the reduction of gradients are left out."""
    for action in row:
        if action is None:
            continue
        if action.sub_actions is not None:
            yield from _actions(action.sub_actions)
        elif action.computation_type.value in ("F", "B", "I", "W"):
            yield Action(action.stage_index, action.computation_type.value, action.microbatch_index)


def _numbered(row: tuple[Action, ...], microbatches: int) -> tuple[Action, ...]:
    """Number the forwards of a stage from 0. torch 2.13 begins with 1 for the last stage of 1F1B, and runs 0."""
    first = {action.stage: action.microbatch for action in reversed(row) if action.kind == "F"}
    return tuple(
        Action(action.stage, action.kind, action.microbatch - first[action.stage])
        if action.kind == "F" and _shifted(row, action.stage, microbatches)
        else action
        for action in row
    )


def _shifted(row: tuple[Action, ...], stage: int, microbatches: int) -> bool:
    return any(a.stage == stage and a.kind == "F" and a.microbatch >= microbatches for a in row)


def _check(name: str, rows: tuple[tuple[Action, ...], ...], stages: int, microbatches: int) -> None:
    """Raise UnknownNameError unless each stage runs one forward and one backward for each microbatch."""
    for stage in range(stages):
        kinds = [action.kind for row in rows for action in row if action.stage == stage]
        full, inputs, weights = (kinds.count(kind) for kind in ("B", "I", "W"))
        if kinds.count("F") != microbatches or full + inputs != microbatches or inputs != weights:
            raise UnknownNameError(
                f"the schedule {name} of this torch has other actions than forward and backward of each microbatch "
                f"(stage {stage}: {len(kinds)} actions)\n  hint: one of {', '.join(SINGLE)}"
            )
