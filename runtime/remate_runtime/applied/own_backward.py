"""Backward passes that a schedule does not have: through the model's own forward, which runs again for them.

A schedule runs backward once, and its gradients have no history. For a double backward (`create_graph=True`), or a
second backward through the same forward, the model's own forward runs again with the tensors and the random numbers of
the call. Autograd then differentiates it as in eager PyTorch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from ..bind.containers import mapped
from ..errors import BindError, ExecutionError, StaleModelError
from ..self_check import Checksums, Snapshot
from ..self_check.generators import Generators
from ..self_check.outcome import leaves, tensors_in
from .scheduled_forward import MatchedCall, ScheduledForward

_VERSION = attrgetter("_version")


class OwnBackward:
    """The model's own forward for a call, to be run again in backward. It keeps no input alive."""

    __slots__ = (
        "_changes",
        "_generators",
        "_given",
        "_inputs",
        "_model",
        "_numbers",
        "_say",
        "_step",
        "_tensors",
        "_updated",
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
        self._model, self._updated = weakref.ref(model), call.step.steps.updated
        self._given = [*map(_weak, given[0])], {key: _weak(arg) for key, arg in given[1].items()}
        self._inputs, self._tensors = [*map(weakref.ref, call.inputs)], call.tensors
        self._numbers, self._changes = call.numbers, step.changes
        self._versions = [*map(_VERSION, call.inputs), *map(_VERSION, call.tensors)]
        self._generators = _generator_states(step.device) if step.draws else ()

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
        model, args, kwargs = self._found(why)
        wanted = self._wanted(why, sources, (args, kwargs))
        generators, snapshot = Generators.now(), Snapshot(model, (args, kwargs), ())
        try:
            for state, device in zip(self._generators, ("cpu", self._step.device), strict=False):
                _set_generator(state, device)
            with torch.enable_grad(), _without_autocast(self._step.device):
                outputs = tensors_in(model.forward(*args, **kwargs))
        finally:
            snapshot.restore(Checksums())
            generators.restore()
        if len(outputs) != len(tangents):
            raise _refusal(why, "it returns other outputs")
        both = [(output, tangent) for output, tangent in zip(outputs, tangents, strict=True) if tangent is not None]
        self._say(why)
        if not both or not wanted:
            return [None] * len(wanted)
        outputs, given = [output for output, _ in both], [tangent for _, tangent in both]
        return list(torch.autograd.grad(outputs, wanted, given, create_graph=create_graph, allow_unused=True))

    def _found(self, why: str) -> tuple[Any, Any, Any]:
        """Return the model and the arguments, if forward would run as it ran."""
        planned = self._step.schedule.model
        if self._updated or "returns" in planned.outputs:
            raise _refusal(why, "it updates buffers or attributes")
        args, kwargs = mapped(self._given, _strong)
        model = self._model()
        tensors = self._sources()
        if model is None or any(leaf is _GONE for _, leaf in leaves((args, kwargs))) or any(t is None for t in tensors):
            raise _refusal(why, "its inputs are gone: keep a variable for them until backward")
        if [*map(_VERSION, tensors)] != self._versions:
            raise _refusal(why, "its inputs or parameters changed after forward")
        if model.training != planned.training or planned.autocast is not None:
            raise _refusal(why, "it is planned under autocast, or the model is in another mode now")
        self._check_call(why, args, kwargs)
        return model, args, kwargs

    def _check_call(self, why: str, args: Any, kwargs: Any) -> None:
        """Raise ExecutionError if the model or its surroundings differ from those of the call."""
        try:
            self._step.check()
            with _without_autocast(self._step.device):
                now = self._step.call(args, kwargs)
        except (BindError, StaleModelError) as error:
            raise _refusal(why, f"{error}".replace("\n", "\n  ")) from error
        if now.numbers != self._numbers:
            raise _refusal(why, "live attributes changed after forward")
        if self._step.changes != self._changes or any(
            a is not b for a, b in zip(now.tensors, self._tensors, strict=True)
        ):
            raise _refusal(why, "parameters or buffers were exchanged after forward")

    def _sources(self) -> list[Any]:
        return [*(tensor() for tensor in self._inputs), *self._tensors]

    def _wanted(self, why: str, sources: Sequence[int], given: object) -> list[torch.Tensor]:
        """Return the sources, if autograd can return their gradients."""
        tensors = self._sources()
        wanted: list[Any] = [tensors[at] for at in sources]
        passed = {id(tensor) for tensor in tensors_in(given)}
        if any(at < len(self._inputs) and id(tensor) not in passed for at, tensor in zip(sources, wanted, strict=True)):
            raise _refusal(why, "an input has another memory layout than planned")
        if len({*map(id, wanted)}) != len(wanted):
            raise _refusal(why, "several inputs or parameters are one tensor")
        if not all(tensor.requires_grad for tensor in wanted):
            raise _refusal(why, "a parameter was frozen after forward")
        if any(tensor._backward_hooks or tensor.retains_grad for tensor in wanted):
            raise _refusal(why, "an input or a parameter has hooks on its gradient")
        return wanted


def _generator_states(device: torch.device) -> list[torch.Tensor]:
    """Return the states of the generators that forward may draw from: of the CPU, and of its own device."""
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _set_generator(state: torch.Tensor, device: torch.device | str) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def _without_autocast(device: torch.device) -> torch.autocast:
    """Switch off what surrounds backward: forward ran without."""
    return torch.autocast(device.type, enabled=False)


_GONE: Any = object()


def _weak(argument: Any) -> Any:
    """Return an argument with weak references in place of its tensors."""
    if isinstance(argument, torch.Tensor):
        return weakref.ref(argument)
    return mapped(argument, lambda leaf: weakref.ref(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _strong(leaf: Any) -> Any:
    if not isinstance(leaf, weakref.ref):
        return leaf
    tensor = leaf()
    return _GONE if tensor is None else tensor


def _refusal(why: str, reason: str) -> ExecutionError:
    return ExecutionError(
        f"{why}, and the model's own forward cannot run again for it: {reason}\n  use the original model there; leave "
        "a model out of remate.auto that needs it (`remate train --skip CLASS`)"
    )
