"""Records the first run of forward in a trace, to find equal blocks before anything is traced."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..step import TracedModule
from .alike import CallBlock, blocks
from .recording import CallRecorder, CallReplay, recording, replaced_forwards
from .second_call import forward_recorded, recorded_forward


class Repeats(Exception):  # noqa: N818
    """Raised to end a trace after its first run. kinds: blocks that need to be traced only once."""

    def __init__(self, kinds: list[list[CallBlock]]) -> None:
        super().__init__()
        self.kinds = kinds


@contextmanager
def recorded(step: TracedModule, modules: dict[str, nn.Module]) -> Generator[None]:
    """Record the first call of `step` in the `with` block, and raise Repeats if enough of it repeats. A call that
    cannot be recorded has no equal blocks."""
    usual, is_first = step.forward, True

    def forward(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal is_first
        if not is_first:
            return usual(*leaves)
        is_first = False
        with forward_recorded(step, leaves) as recorder, replaced_forwards(modules, recording(recorder)):
            outputs = usual(*leaves)
        step.recorded = recorded_forward(step, recorder, leaves, outputs)
        kinds = _kinds(step, recorder)
        if kinds:
            _again(step, usual, recorder, leaves)
            raise Repeats(kinds)
        return outputs

    vars(step)["forward"] = forward
    try:
        yield
    finally:
        vars(step).pop("forward")


def _kinds(step: TracedModule, recorder: CallRecorder) -> list[list[CallBlock]]:
    if recorder.failed or step.lost or step.reads.changes().of_modules():
        return []
    differ = [output.grad for output in step.outputs]
    return blocks(recorder, [number for number, grad in zip(recorder.final, differ, strict=False) if grad])


def _again(step: TracedModule, forward: Any, recorder: CallRecorder, leaves: Any) -> None:
    """Run forward again as a trace does. It must make the same calls."""
    try:
        with step.watch.repeating(CallReplay(recorder)):
            forward(*leaves)
    except Exception:  # forward runs code that cannot be replayed, such as an autograd.Function
        forward(*leaves)
