"""Finds out whether the second call of forward makes the same calls of torch as the first. Then its step is the same,
without a second trace.

Forward runs again as in a trace, and its calls are compared with the recorded calls of the first run. Both runs begin
with the same parameters, buffers and inputs, and every other tensor must be the result of a compared call. Autograd's
graph follows from these calls, unless it contains Python.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from .. import torch_api
from ..branches import Branches
from ..step import TracedModule
from .errors import UnlikeError
from .recording import CallRecorder, Event, hooks_backward
from .specs import is_opaque, renamed, tensors

_log = logging.getLogger(__name__)


class RecordedForward(NamedTuple):
    """A recorded run of forward.

    Attributes:
        recorder: Its calls.
        given: Number of parameters, buffers and inputs, which are the first tensors of the recorder.
        outputs: The tensors that forward returned or stored in attributes.
        returned: Its other effects.
    """

    recorder: CallRecorder
    given: int
    outputs: Sequence[torch.Tensor]
    returned: tuple[Any, ...]


class _ForwardEndedError(Exception):
    """Raised to end a trace after forward."""

    def __init__(self, run: RecordedForward) -> None:
        super().__init__()
        self.run = run


@contextmanager
def forward_recorded(step: TracedModule, leaves: Sequence[torch.Tensor]) -> Generator[CallRecorder]:
    """Record a run of `step` with these tensors in the `with` block. Yields the recorder."""
    recorder = CallRecorder()
    recorder.met([*step.parameters(), *step.buffers(), *leaves])
    with step.reads.noting(recorder.wrote), step.watch.followed_by(recorder):
        yield recorder


def recorded_forward(
    step: TracedModule, recorder: CallRecorder, leaves: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> RecordedForward:
    """Return the run of `step` that `forward_recorded` recorded. outputs: what it returned."""
    given = len([*step.parameters(), *step.buffers(), *leaves])
    return RecordedForward(recorder, given, outputs, (step.tree, step.outputs, step.opaque, step.lost))


def next_call_is_same(first: RecordedForward, step: TracedModule, leaves: list[torch.Tensor]) -> bool:
    """Whether forward of `step`, in its state after the first call, makes the recorded calls. False also if that is
    unknown; then the whole step must be traced."""
    mode = torch_api.mode_of(step, leaves)
    try:
        with torch_api.tracing(mode, Branches(), step.has_live, step.stepwise), _forward_alone(step):
            torch_api.joint(step, [torch_api.fake(leaf, mode) for leaf in leaves])
    except _ForwardEndedError as ended:
        return _same(step, first, ended.run)
    except Exception as error:  # tracing the whole step reports the reason
        _log.debug("forward's next call cannot be compared: %s", error, exc_info=True)
    return False


@contextmanager
def _forward_alone(step: TracedModule) -> Generator[None]:
    """Record the first call of `step` in the `with` block, and raise the record."""
    usual = step.forward

    def forward(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with forward_recorded(step, leaves) as recorder:
            outputs = usual(*leaves)
        raise _ForwardEndedError(recorded_forward(step, recorder, leaves, outputs))

    vars(step)["forward"] = forward
    try:
        yield
    finally:
        vars(step).pop("forward")


def _same(step: TracedModule, first: RecordedForward, second: RecordedForward) -> bool:
    try:
        if any(hooks_backward(part) for part in step.model.modules()):
            raise UnlikeError("it has hooks for backward")
        if first.given != second.given or first.returned != second.returned or _calls(first) != _calls(second):
            raise UnlikeError("it does something else")
    except UnlikeError as error:
        _log.debug("forward's next call is not seen to be the same: %s", error)
        return False
    return True


def _calls(run: RecordedForward) -> list[Any]:
    """Return the calls of forward, with tensor names that depend on compared calls only. Raises UnlikeError for a call
    that cannot be compared."""
    recorder, names = run.recorder, {number: number for number in range(run.given)}
    if recorder.failed:
        raise UnlikeError("it cannot be recorded")
    _refuse_python(run.outputs)
    events: list[Any] = []
    for event in recorder.events:
        if _only_asks(event):
            continue
        if event.opaque or any(tensor.number not in names for tensor in tensors(event.args)):
            raise UnlikeError(f"{getattr(event.function, '__name__', event.function)} is given what is not recorded")
        args = renamed(event.args, lambda tensor: ("tensor", names[tensor.number]))
        for tensor in tensors(event.result):
            names.setdefault(tensor.number, len(names))
        result = renamed(event.result, lambda tensor: ("tensor", names[tensor.number], tensor.layout))
        events.append((event.function, args, result, event.module, event.place, event.modes))
    if any(number not in names for number in recorder.final):
        raise UnlikeError("it returns what is not recorded")
    return [*events, [names[number] for number in recorder.final]]


def _only_asks(event: Event) -> bool:
    """Whether the call reads an attribute of a tensor that is not a tensor: type, shape, device."""
    name = getattr(event.function, "__name__", "")
    return name == "__get__" and not is_opaque(event.result) and next(tensors(event.result), None) is None


def _refuse_python(outputs: Sequence[torch.Tensor]) -> None:
    """Raise UnlikeError if autograd runs Python, which may read what the first call changed."""
    seen: set[Any] = set()
    todo = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            raise UnlikeError(f"autograd runs {node.name()}, which is written in Python")
        todo += [following for following, _ in node.next_functions if following is not None]
