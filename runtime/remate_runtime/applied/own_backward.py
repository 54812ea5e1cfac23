"""Backward passes that a schedule does not have: through the model's own forward, which runs again for them.

A schedule runs backward once, and its gradients have no history. For a double backward (`create_graph=True`), or a
second backward through the same forward, the model's own forward runs again with the tensors and the random numbers of
the call. Autograd then differentiates it as in eager PyTorch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..bind.containers import mapped
from ..errors import BindError, ExecutionError, StaleModelError
from ..format.signature import output_leaves
from ..format.trees import returned_by
from ..link.update_only import updates_only
from ..operator_calls.overloads import TORCH_DTYPES
from ..self_check import Checksums, Snapshot
from ..self_check.generators import Generators
from ..self_check.outcome import tensors_in
from .scheduled_forward import MatchedCall, ScheduledForward


class OwnBackward:
    """The model's own forward for a call, to be run again in backward. It keeps no input alive."""

    __slots__ = (
        "_changes",
        "_generators",
        "_given",
        "_keeps_casts",
        "_model",
        "_numbers",
        "_say",
        "_step",
        "_steps",
        "_tensors",
        "_versions",
    )

    def __init__(
        self,
        step: ScheduledForward,
        model: torch.nn.Module,
        call: MatchedCall,
        given: tuple[Sequence[Any], Mapping[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        """Note the call, before its forward runs.

        Args:
            step: The schedule that runs it.
            model: The live model.
            call: The matched call.
            given: Its arguments, positional and by name.
            say: Called with the reason, if forward runs again.
        """
        self._step, self._say = step, say
        self._model, self._steps = weakref.ref(model), call.step.steps
        self._keeps_casts = torch.is_autocast_cache_enabled()
        self._tensors, self._numbers, self._changes = call.tensors, call.numbers, step.changes
        tensors = [*call.tensors]
        args, kwargs = given
        self._given = [_weak(arg, tensors) for arg in args], {key: _weak(arg, tensors) for key, arg in kwargs.items()}
        self._versions = _versions(tensors)
        self._generators = _generators(step.device) if step.draws else ()

    def gradients(
        self, why: str, sources: Sequence[int], tangents: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Run forward again, and return the gradients of sources.

        Args:
            why: Why the schedule's backward does not do.
            sources: Numbers among the inputs, parameters and buffers.
            tangents: The gradients of the outputs.

        Raises:
            ExecutionError: Forward cannot run as it ran.
        """
        create_graph = torch.is_grad_enabled()
        model, given, tensors = self._found(why)
        args, kwargs = given
        wanted = _wanted(why, [tensors[at] for at in sources], (*tensors_in(given), *self._tensors))
        buffers = self._buffers()
        generators, snapshot = Generators.now(), Snapshot(model, given, buffers)
        try:
            for restore, state in self._generators:
                restore(state)
            with torch.enable_grad(), self._autocast():
                outputs = tensors_in(model.forward(*args, **kwargs))
        finally:
            snapshot.restore(Checksums())
            generators.restore()
        returned, attributes = tangents[: len(outputs)], tangents[len(outputs) :]
        if len(outputs) != self._returned:
            raise _refusal(why, "it returns other outputs")
        if any(tangent is not None for tangent in attributes):
            raise _refusal(why, "an attribute that it sets got a gradient")
        both = [(output, tangent) for output, tangent in zip(outputs, returned, strict=True) if tangent is not None]
        self._say(why)
        if not both or not wanted:
            return [None] * len(wanted)
        outputs, received = [output for output, _ in both], [tangent for _, tangent in both]
        return list(torch.autograd.grad(outputs, wanted, received, create_graph=create_graph, allow_unused=True))

    def _changed(self, tensors: list[torch.Tensor]) -> bool:
        """Return whether tensors of the call have changed, other than the buffers that forward updates."""
        updated = {*map(id, self._buffers())}
        versions = zip(tensors, self._versions or (), _versions(tensors) or (), strict=True)
        return any(was != now for tensor, was, now in versions if id(tensor) not in updated)

    def _buffers(self) -> list[torch.Tensor]:
        """Return the buffers that forward updates."""
        planned, updated = self._step.schedule.model, self._steps.updated
        names = (*planned.parameters, *planned.buffers)
        return [tensor for name, tensor in zip(names, self._tensors, strict=True) if name in updated] if updated else []

    @property
    def _returned(self) -> int:
        """The number of tensors that forward returns."""
        outputs = self._step.schedule.model.outputs
        return sum(1 for _ in output_leaves(returned_by(outputs)))

    def _found(self, why: str) -> tuple[Any, tuple[Any, Any], list[torch.Tensor]]:
        """Return the model, the arguments and the sources, if forward would run as it ran."""
        planned, model = self._step.schedule.model, self._model()
        if self._steps.updated and not updates_only(self._steps.graph):
            raise _refusal(why, "it computes with buffers that it updates")
        tensors: list[Any] = [*self._tensors]
        args, kwargs = mapped(self._given, functools.partial(_strong, tensors=tensors))
        if model is None or any(tensor is None for tensor in tensors):
            raise _refusal(why, "its inputs are gone: keep a variable for them until backward")
        if self._versions is None:
            raise _refusal(why, "an input was created in inference mode, which counts no changes")
        if self._changed(tensors):
            raise _refusal(why, "its inputs or parameters changed after forward")
        if model.training != planned.training:
            raise _refusal(why, "the model is in another mode now")
        call = self._matched_again(why, args, kwargs)
        return model, (args, kwargs), [*call.inputs, *call.tensors]

    def _autocast(self) -> torch.autocast:
        """Return the autocast that forward ran under, in place of that of backward."""
        dtype, device = self._step.schedule.model.autocast, self._step.device.type
        if dtype is None:
            return torch.autocast(device, enabled=False)
        return torch.autocast(device, TORCH_DTYPES[dtype], cache_enabled=self._keeps_casts)

    def _matched_again(self, why: str, args: Any, kwargs: Any) -> MatchedCall:
        """Match the call again. Raise ExecutionError if the model or its surroundings have changed since forward."""
        try:
            self._step.check()
            with self._autocast():
                now = self._step.call(args, kwargs)
        except (BindError, StaleModelError) as error:
            raise _refusal(why, f"{error}".replace("\n", "\n  ")) from error
        if now.numbers != self._numbers:
            raise _refusal(why, "live attributes or inputs changed after forward")
        if self._step.changes != self._changes or any(
            a is not b for a, b in zip(now.tensors, self._tensors, strict=True)
        ):
            raise _refusal(why, "parameters or buffers were exchanged after forward")
        return now


def _wanted(why: str, wanted: list[torch.Tensor], known: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the wanted sources, if autograd can return their gradients. known: what forward is called with."""
    if not {*map(id, wanted)} <= {*map(id, known)}:
        raise _refusal(why, "an input has another memory layout than planned")
    if len({*map(id, wanted)}) != len(wanted):
        raise _refusal(why, "several inputs or parameters are one tensor")
    if not all(tensor.requires_grad for tensor in wanted):
        raise _refusal(why, "a parameter was frozen after forward")
    if any(tensor._backward_hooks or tensor.retains_grad for tensor in wanted):
        raise _refusal(why, "an input or a parameter has hooks on its gradient")
    return wanted


def _generators(device: torch.device) -> list[tuple[Callable[[torch.Tensor], None], torch.Tensor]]:
    """Return (setter, state) of the generators that forward may draw from: of the CPU, and of its own device alone,
    because every call pays for it."""
    generators: list[tuple[Callable[[torch.Tensor], None], torch.Tensor]] = [
        (torch.set_rng_state, torch.get_rng_state())
    ]
    if device.type == "cuda":
        own = functools.partial(torch.cuda.set_rng_state, device=device)
        generators.append((own, torch.cuda.get_rng_state(device)))
    return generators


def _versions(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """Return the versions of tensors; None if one was created in inference mode, and has none."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return None


def _weak(argument: Any, tensors: list[torch.Tensor]) -> Any:
    """Return an argument with weak references in place of its tensors, which are appended to `tensors`."""
    if isinstance(argument, torch.Tensor):
        tensors.append(argument)
        return weakref.ref(argument)
    return mapped(argument, lambda leaf: _weak(leaf, tensors) if isinstance(leaf, torch.Tensor) else leaf)


def _strong(leaf: Any, tensors: list[Any]) -> Any:
    """Return a leaf, or the tensor that it refers to, which is appended to `tensors`: None if it is gone."""
    if not isinstance(leaf, weakref.ref):
        return leaf
    tensors.append(leaf())
    return tensors[-1]


def _refusal(why: str, reason: str) -> ExecutionError:
    return ExecutionError(
        f"{why}, and the model's own forward cannot run again for it: {reason}\n  use the original model there; leave "
        "a model out of remate.auto that needs it (`remate train --skip CLASS`)"
    )
