"""Whether forward's next call asks the same of torch as its first one: then it is the same step, which need not be
traced again to find that out.

Forward is run once more as a trace runs it, and its calls are compared, one by one, with those of the run that was
recorded while the step was traced. Both runs begin with the same parameters, buffers and inputs; each other tensor must
be the result of a call that was compared. What autograd does follows from these calls, unless it is written in Python.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from .. import torch_api
from ..branches import Branches
from ..step import TracedModule
from .errors import UnlikeError
from .recording import CallRecorder, Event
from .specs import is_opaque, renamed, tensors

_log = logging.getLogger(__name__)


class RecordedForward(NamedTuple):
    """One run of forward. recorder: of its calls; the first tensors that it met are `given` parameters, buffers and
    inputs. made: the tensors that forward returned or left in attributes. returned: what else it did."""

    recorder: CallRecorder
    given: int
    made: Sequence[torch.Tensor]
    returned: tuple[Any, ...]


class _ForwardEndedError(Exception):
    """Raised out of a trace that is given up behind forward."""

    def __init__(self, run: RecordedForward) -> None:
        super().__init__()
        self.run = run


@contextmanager
def forward_recorded(step: TracedModule, leaves: Sequence[torch.Tensor]) -> Iterator[CallRecorder]:
    """Within, a run of `step` with these tensors is noted by the recorder that this gives."""
    recorder = CallRecorder()
    recorder.met([*step.parameters(), *step.buffers(), *leaves])
    with step.reads.noting(recorder.wrote), step.watch.followed_by(recorder):
        yield recorder


def recorded_forward(
    step: TracedModule, recorder: CallRecorder, leaves: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
) -> RecordedForward:
    """What `forward_recorded` recorded of `step`, which returned `made`."""
    given = len([*step.parameters(), *step.buffers(), *leaves])
    return RecordedForward(recorder, given, made, (step.tree, step.outputs, step.opaque, step.lost))


def next_call_is_same(first: RecordedForward, step: TracedModule, leaves: list[torch.Tensor]) -> bool:
    """Whether forward of `step`, which is as the first call left it, is seen to be the recorded one. False where that
    cannot be seen: the whole step must be traced then."""
    mode = torch_api.mode_of(step, leaves)
    try:
        with torch_api.tracing(mode, Branches(), step.has_live, step.stepwise), _forward_alone(step):
            torch_api.joint(step, [torch_api.fake(leaf, mode) for leaf in leaves])
    except _ForwardEndedError as ended:
        return _same(step, first, ended.run)
    except Exception as error:  # tracing the whole step says what is wrong
        _log.debug("forward's next call cannot be compared: %s", error, exc_info=True)
    return False


@contextmanager
def _forward_alone(step: TracedModule) -> Iterator[None]:
    """The first call of `step` within is recorded, and raises what it recorded."""
    usual = step.forward

    def forward(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with forward_recorded(step, leaves) as recorder:
            made = usual(*leaves)
        raise _ForwardEndedError(recorded_forward(step, recorder, leaves, made))

    vars(step)["forward"] = forward
    try:
        yield
    finally:
        vars(step).pop("forward")


def _same(step: TracedModule, first: RecordedForward, second: RecordedForward) -> bool:
    try:
        if any(part._backward_hooks or part._backward_pre_hooks for part in step.model.modules()):
            raise UnlikeError("it has hooks for backward")
        if first.given != second.given or first.returned != second.returned or _calls(first) != _calls(second):
            raise UnlikeError("it does something else")
    except UnlikeError as error:
        _log.debug("forward's next call is not seen to be the same: %s", error)
        return False
    return True


def _calls(run: RecordedForward) -> list[Any]:
    """All that forward asks of torch, with names for tensors that do not depend on what was not compared. Raises
    UnlikeError where something cannot be compared."""
    recorder, names = run.recorder, {number: number for number in range(run.given)}
    if recorder.failed:
        raise UnlikeError("it cannot be recorded")
    _refuse_python(run.made)
    found: list[Any] = []
    for event in recorder.events:
        if _only_asks(event):
            continue
        if event.opaque or any(tensor.number not in names for tensor in tensors(event.args)):
            raise UnlikeError(f"{getattr(event.function, '__name__', event.function)} is given what is not recorded")
        args = renamed(event.args, lambda tensor: ("tensor", names[tensor.number]))
        for tensor in tensors(event.made):
            names.setdefault(tensor.number, len(names))
        made = renamed(event.made, lambda tensor: ("tensor", names[tensor.number], tensor.layout))
        found.append((event.function, args, made, event.module, event.place, event.modes))
    if any(number not in names for number in recorder.final):
        raise UnlikeError("it returns what is not recorded")
    return [*found, [names[number] for number in recorder.final]]


def _only_asks(event: Event) -> bool:
    """An attribute of a tensor that is none itself: type, shape, device."""
    name = getattr(event.function, "__name__", "")
    return name == "__get__" and not is_opaque(event.made) and next(tensors(event.made), None) is None


def _refuse_python(made: Sequence[torch.Tensor]) -> None:
    """Raise UnlikeError if autograd runs Python, which may read what the first call changed."""
    seen: set[Any] = set()
    todo = [tensor.grad_fn for tensor in made if tensor.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            raise UnlikeError(f"autograd runs {node.name()}, which is written in Python")
        todo += [following for following, _ in node.next_functions if following is not None]
