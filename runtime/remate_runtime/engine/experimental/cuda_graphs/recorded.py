"""A step that was recorded for tensors at certain addresses."""

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
    """A recording.

    Attributes:
        inputs: Filled before forward.
        tangents: Filled before backward.
        tapes: Of forward, and of each segment of backward; the first segment begins it.
        outputs: Copied after forward.
        updates: Read directly after forward.
        gradients: Copied after each segment.
    """

    inputs: Filled
    tangents: Filled
    tapes: tuple[GraphTape, ...]
    outputs: Copied
    updates: tuple[torch.Tensor, ...]
    gradients: tuple[Copied, ...]

    @property
    def copied(self) -> int:
        """Bytes of calls outside the pool: outputs and gradients."""
        return self.outputs.nbytes + sum(copies.nbytes for copies in self.gradients)


class _Backward(NamedTuple):
    tangents: list[Static]
    tapes: list[GraphTape]
    gradients: list[list[Static]]


def record(
    step: CompiledStep,
    contract: StepContract,
    recorder: GraphRecorder,
    sources: Sequence[Any],
    inputs: Sequence[int],
    device: torch.device,
) -> Recorded:
    """Record forward and all of backward. The step runs once, with zero gradients of outputs and discarded results.

    Args:
        step: The step.
        contract: Its contract.
        recorder: The recorder.
        sources: The contract's sources.
        inputs: Indices of sources that calls replace.
        device: The device.
    """
    with recorder.recording():
        recorder.warm(lambda: _run(step, contract, sources, device))
        forward, (forwarded, places) = taped(recorder, lambda: _forward(step, recorder, sources, inputs))
        outputs, updates = _places(recorder, forwarded.outputs), _places(recorder, forwarded.updates)
        residue = forwarded.residue
        del forwarded  # from here on the pool may reuse the outputs' memory
        back = _backward(step, contract, recorder, residue, device)
    bytes_at = recorder.bytes_at
    return Recorded(
        Filled(places, bytes_at, device),
        Filled(back.tangents, bytes_at, device),
        (forward, *back.tapes),
        Copied(outputs, bytes_at, device),
        tuple(alias(static_tensor, bytes_at, device) for static_tensor in updates),
        tuple(Copied(static_tensor, bytes_at, device) for static_tensor in back.gradients),
    )


def _run(step: CompiledStep, contract: StepContract, sources: Sequence[Any], device: torch.device) -> None:
    residue = step.forward(sources).residue
    step.begin(residue, [empty(tangent.type, device).zero_() for tangent in contract.tangents])
    for segment in step.segments:
        segment(residue)


def _places(recorder: GraphRecorder, tensors: Sequence[torch.Tensor]) -> list[Static]:
    return [static(tensor, recorder.address) for tensor in tensors]


def _forward(
    step: CompiledStep, recorder: GraphRecorder, given: Sequence[Any], inputs: Sequence[int]
) -> tuple[Forwarded, list[Static]]:
    sources = list(given)
    for at in inputs:
        sources[at] = like(given[at])
    return step.forward(sources), _places(recorder, [sources[at] for at in inputs])


def _backward(
    step: CompiledStep, contract: StepContract, recorder: GraphRecorder, residue: Any, device: torch.device
) -> _Backward:
    backward = _Backward([], [], [])

    def run(at: int) -> list[Static]:
        if not at:
            tangents = [empty(tangent.type, device) for tangent in contract.tangents]
            backward.tangents.extend(_places(recorder, tangents))
            step.begin(residue, tangents)
        return _places(recorder, step.segments[at](residue))

    for at in range(len(step.segments)):
        tape, gradients = taped(recorder, lambda at=at: run(at))
        backward.tapes.append(tape)
        backward.gradients.append(gradients)
    return backward
