"""The first run of forward in a trace, recorded: reports whether blocks repeat before anything is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..step import TracedModule
from .alike import CallBlock, blocks
from .recording import CallRecorder, CallReplay, recording, replaced_forwards
from .second_call import forward_recorded, recorded_forward


class Repeats(Exception):  # noqa: N818
    """Raised out of a trace that is given up after its first run: kinds of blocks that need be traced but once."""

    def __init__(self, kinds: list[list[CallBlock]]) -> None:
        super().__init__()
        self.kinds = kinds


@contextmanager
def recorded(step: TracedModule, modules: dict[str, nn.Module]) -> Iterator[None]:
    """The first call of `step` within is recorded, and raises Repeats if enough of it repeats. Recording never fails:
    what cannot be recorded repeats nothing."""
    usual, is_first = step.forward, True

    def forward(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal is_first
        if not is_first:
            return usual(*leaves)
        is_first = False
        with forward_recorded(step, leaves) as recorder, replaced_forwards(modules, recording(recorder)):
            made = usual(*leaves)
        step.recorded = recorded_forward(step, recorder, leaves, made)
        kinds = _kinds(step, recorder)
        if kinds:
            _again(step, usual, recorder, leaves)
            raise Repeats(kinds)
        return made

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
    """Forward once more, as a trace would run it: it must ask the same."""
    try:
        with step.watch.repeating(CallReplay(recorder)):
            forward(*leaves)
    except Exception:  # forward runs code that is not repeated so, such as an autograd.Function
        forward(*leaves)
