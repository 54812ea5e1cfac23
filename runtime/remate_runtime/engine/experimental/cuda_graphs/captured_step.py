"""A step that is replayed if possible, and otherwise runs without graphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ....errors import ExecutionError
from ....support.quantities import size
from ...compiled_step import CompiledStep, Forwarded, LinkedStep
from .gpu import GraphRecorder
from .predicted_pool import PredictedPool
from .recorded import Recorded, record

_log = logging.getLogger(__name__)
_MOST = 4  # most sets of addresses to record a step for


class _Residue:
    """The residue of a replayed forward. While it exists, the pool contains what its backward reads.

    Attributes:
        fixed: Tensors of the model that are read at their recorded addresses.
        where: These addresses.
    """

    __slots__ = ("__weakref__", "fixed", "recorded", "where")

    def __init__(self, fixed: Sequence[torch.Tensor]) -> None:
        self.recorded: Recorded | None = None
        self.fixed, self.where = fixed, _places(fixed)


def _places(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple([(tensor.data_ptr(), tensor.stride()) for tensor in tensors])


class CapturedStep:
    """Replays a step. The model's tensors are read at their addresses during recording; if they move, the step is
    recorded again.

    Args:
        plain: The step without graphs.
    """

    def __init__(
        self,
        step: LinkedStep,
        plain: CompiledStep,
        device: torch.device,
        recorder: Callable[[], GraphRecorder],
        predicted: PredictedPool,
    ) -> None:
        self._contract, self._plain, self._device = step.contract, plain, device
        self._recorder, self._predicted = recorder, predicted
        values = step.linked.graph.values
        kinds = [values[value].kind for value in self._contract.sources]
        self._inputs = [at for at, kind in enumerate(kinds) if kind == "input"]
        self._fixed = [at for at, kind in enumerate(kinds) if kind != "input"]
        self._recorded: dict[Hashable, Recorded] = {}
        self._off = False

    def compiled(self) -> CompiledStep:
        """Return the replacement for the step without graphs."""
        return CompiledStep(
            self._forward,
            self._plain.inference,
            self._begin,
            tuple(self._segment(at) for at in range(len(self._plain.segments))),
            self._predicted.peak,
        )

    def _forward(self, given: Sequence[Any]) -> Forwarded:
        if self._off:
            return self._plain.forward(given)
        recorder, residue = self._recorder(), _Residue([given[at] for at in self._fixed])
        if recorder.records() or not recorder.take(residue):
            return self._plain.forward(given)
        recorded = self._of(recorder, residue.where, given)
        if recorded is None:
            recorder.give()
            return self._plain.forward(given)
        residue.recorded = recorded
        recorded.inputs.fill([given[at] for at in self._inputs])
        recorded.tapes[0].play()
        return Forwarded(recorded.outputs(), list(recorded.updates), residue)

    def _begin(self, residue: Any, tangents: list[torch.Tensor]) -> None:
        if not isinstance(residue, _Residue):
            return self._plain.begin(residue, tangents)
        assert residue.recorded is not None
        if _places(residue.fixed) != residue.where:
            raise ExecutionError(
                "a parameter or buffer got other memory between forward and backward (its .data was assigned), and "
                "CUDA graphs read it where it was\n  assign it before forward, or leave out cuda_graphs=True"
            )
        residue.recorded.tangents.fill(tangents)
        tangents.clear()

    def _segment(self, at: int) -> Any:
        plain, is_last = self._plain.segments[at], at == len(self._plain.segments) - 1

        def run(residue: Any) -> list[torch.Tensor]:
            if not isinstance(residue, _Residue):
                return plain(residue)
            recorded = residue.recorded
            assert recorded is not None
            recorded.tapes[at + 1].play()
            gradients = recorded.gradients[at]()
            if is_last:
                residue.recorded = None
                self._recorder().give()
            return gradients

        return run

    def _of(self, recorder: GraphRecorder, where: tuple[Any, ...], given: Sequence[Any]) -> Recorded | None:
        """Return the recording for given sources; None if there can be none. where: addresses of the model's
        tensors."""
        key = where, tuple([given[at].stride() for at in self._inputs]), recorder.settings()
        return self._recorded.get(key) or self._record(recorder, key, given)

    def _record(self, recorder: GraphRecorder, key: Hashable, given: Sequence[Any]) -> Recorded | None:
        if len(self._recorded) == _MOST:
            return self._without(
                f"parameters or buffers were moved in memory {_MOST} times, or settings of torch changed"
            )
        try:
            recorded = record(self._plain, self._contract, recorder, given, self._inputs, self._device)
        except RuntimeError as error:
            return self._without(f"it could not be recorded: {str(error).strip().splitlines()[0]}")
        self._recorded[key] = recorded
        _log.info(
            "the step is replayed by %d CUDA graphs; their private pool takes %s, and calls copy %s out of it (%s "
            "predicted)",
            sum(tape.parts for tape in recorded.tapes),
            size(recorder.reserved()),
            size(recorded.copied),
            size(self._predicted.peak),
        )
        return recorded

    def _without(self, reason: str) -> None:
        """Run the step without graphs from now on, and free the recordings."""
        self._off = True
        self._recorded.clear()
        warnings.warn(f"the step runs without CUDA graphs from now on: {reason}", UserWarning, stacklevel=2)
