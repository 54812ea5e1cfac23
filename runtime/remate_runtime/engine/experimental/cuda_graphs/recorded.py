"""A step as it was recorded for tensors at certain addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ....link.contract import StepContract
from ....operator_calls.overloads import empty
from ...compiled_step import CompiledStep, Forwarded
from .gpu import GraphRecorder
from .statics import Copied, Filled, Static, alias, like, static
from .tape import GraphTape
from .tape import record as taped


class Recorded(NamedTuple):
    """inputs, tangents: what is filled before forward and before backward. tapes: of forward, and of each segment of
    backward, the first of which begins it. outputs, gradients (by segment): what is copied behind them. updates: read
    behind forward, at once."""

    inputs: Filled
    tangents: Filled
    tapes: tuple[GraphTape, ...]
    outputs: Copied
    updates: tuple[torch.Tensor, ...]
    gradients: tuple[Copied, ...]

    @property
    def copied(self) -> int:
        """Bytes that calls hold beside the pool: outputs and gradients."""
        return self.outputs.nbytes + sum(one.nbytes for one in self.gradients)


class _Backward(NamedTuple):
    tangents: list[Static]
    tapes: list[GraphTape]
    gradients: list[list[Static]]


def record(
    step: CompiledStep,
    contract: StepContract,
    recorder: GraphRecorder,
    given: Sequence[Any],
    inputs: Sequence[int],
    device: torch.device,
) -> Recorded:
    """Record forward and all of backward. given: the contract's sources; of those at `inputs` the calls bring others.
    The step runs once for that, with gradients of outputs that are 0; what that makes goes nowhere."""
    with recorder.recording():
        recorder.warm(lambda: _run(step, contract, given, device))
        forward, (made, places) = taped(recorder, lambda: _forward(step, given, inputs))
        outputs, updates = [list(map(static, made.outputs)), list(map(static, made.updates))]
        residue = made.residue
        del made  # from here on the pool may use the outputs' memory again
        back = _backward(step, contract, recorder, residue, device)
    bytes_at = recorder.bytes_at
    return Recorded(
        Filled(places, bytes_at, device),
        Filled(back.tangents, bytes_at, device),
        (forward, *back.tapes),
        Copied(outputs, bytes_at, device),
        tuple(alias(one, bytes_at, device) for one in updates),
        tuple(Copied(one, bytes_at, device) for one in back.gradients),
    )


def _run(step: CompiledStep, contract: StepContract, given: Sequence[Any], device: torch.device) -> None:
    residue = step.forward(given).residue
    step.begin(residue, [empty(one.type, device).zero_() for one in contract.tangents])
    for segment in step.segments:
        segment(residue)


def _forward(step: CompiledStep, given: Sequence[Any], inputs: Sequence[int]) -> tuple[Forwarded, list[Static]]:
    sources = list(given)
    for at in inputs:
        sources[at] = like(given[at])
    return step.forward(sources), [static(sources[at]) for at in inputs]


def _backward(
    step: CompiledStep, contract: StepContract, recorder: GraphRecorder, residue: Any, device: torch.device
) -> _Backward:
    found = _Backward([], [], [])

    def run(at: int) -> list[Static]:
        if not at:
            tangents = [empty(one.type, device) for one in contract.tangents]
            found.tangents.extend(map(static, tangents))
            step.begin(residue, tangents)
        return list(map(static, step.segments[at](residue)))

    for at in range(len(step.segments)):
        tape, gradients = taped(recorder, lambda at=at: run(at))
        found.tapes.append(tape)
        found.gradients.append(gradients)
    return found
