"""A recording in parts: graphs, and operations on the random number generator before some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...eager.random_runs import from_state, recorded_by
from .gpu import GraphRecorder, Replay

Made = TypeVar("Made")


class _GeneratorState:
    """The generator's state at the first run of the latest replay."""

    before: torch.Tensor


class GraphTape:
    """A recording. A repeated random operation is a separate graph, because a graph takes the generator's state at
    replay."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self._parts: list[Replay] = []

    def first(self, run: Callable[[], None], generator: torch.Generator) -> Any:
        state = _GeneratorState()
        replay = self._apart(run)

        def play() -> None:
            state.before = generator.get_state()
            replay()

        self._parts.append(play)
        return state

    def again(self, run: Callable[[], None], generator: torch.Generator, state: Any) -> None:
        replay = self._apart(run)
        self._parts.append(lambda: from_state(replay, generator, state.before))

    def record(self, run: Callable[[], Made]) -> Made:
        self._recorder.begin()
        try:
            with recorded_by(self):
                result = run()
        except BaseException:
            self._recorder.abandon()
            raise
        self._parts.append(self._recorder.end())
        return result

    def play(self) -> None:
        for part in self._parts:
            part()

    @property
    def parts(self) -> int:
        return len(self._parts)

    def _apart(self, run: Callable[[], None]) -> Replay:
        self._parts.append(self._recorder.end())
        self._recorder.begin()
        run()
        replay = self._recorder.end()
        self._recorder.begin()
        return replay


def record(recorder: GraphRecorder, run: Callable[[], Made]) -> tuple[GraphTape, Made]:
    """Record the device work of `run`. Return the recording and the result, tensors without contents."""
    tape = GraphTape(recorder)
    return tape, tape.record(run)
