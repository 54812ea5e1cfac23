"""`apply(model, schedule)`: the model, with its training step executed by the schedule.

The result is another view of the same model: an instance of a subclass of the model's class that shares the model's
attributes, so parameters, buffers, submodules, hooks, train/eval mode, `state_dict`, `config` and methods are the same.
Only `forward` differs.
"""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from .bind.inputs import Inputs
from .bind.model_binding import ModelBinding, check_autocast
from .bind.outputs import Detached, output_builder
from .engine.registry import engine_of
from .engine.step_function import run_step
from .engine.steps import Steps
from .errors import BindError, ExecutionError, ScheduleError, ScheduleFaultsError, SteppedAsideWarning
from .format.positions import locate
from .format.reader import decode, read
from .format.schedule import Schedule
from .format.signature import output_leaves
from .gc_pause import gc_paused
from .kernels.live import operators
from .link.verifier import verify
from .live.beside import Call, verify_beside
from .live.trust import Stale, trusted


def apply(
    model: nn.Module,
    schedule: Schedule | str | os.PathLike[str],
    *,
    namespaces: Collection[str] = (),
    stale: Stale = "error",
    verify: bool | Call = False,
    engine: str = "eager",
) -> Any:
    """Give `model` the schedule's training step. Returns an `nn.Module` that shares everything with `model`.

    schedule: a Schedule or the path of a schedule file. namespaces: of operators that may run beyond those that any file
    may name, of libraries that you trust; also single operators of torch that follow indices from the file or the data
    without checking them. The file lists those that it needs. stale: what to do if the
    model's code, attributes or hooks are not those that were planned: "error" refuses, "warn" warns and goes on with the
    planned step. verify: run one step beside the model and compare gradients, outputs, buffers; True takes random inputs
    of the planned types, (args, kwargs) those. It needs the memory of an eager step, and sees what the digest cannot.
    engine: what executes the step; "eager" calls one operator after the other.

    In train mode (or whatever mode the file was planned in) a call runs the schedule, and its gradients are those of
    the model; in eval mode a schedule planned for training steps aside and the model's own forward runs. Submodules are
    not called: hooks on the model itself run, those of its submodules are part of the planned step or refused.

    Raises ScheduleError (the file is no legal schedule), BindError (it is not of this model), StaleModelError, a
    BindError (the model changed since) and EngineError (there is no such engine). Calls raise BindError (other shapes, other mode), StaleModelError (hooks,
    attributes or functions changed since `apply`) and ExecutionError (backward twice, tensors changed before backward).
    Warns with SteppedAsideWarning, once, where the model's own forward runs although gradients are asked for, and with
    StaleModelWarning of another version of torch or of a package that defines modules.
    """
    with gc_paused():
        if isinstance(schedule, Schedule):
            return _applied(ScheduledForward(_original(model), schedule, tuple(namespaces), stale, engine), verify)
        data = read(schedule)
        decoded = decode(data)
        try:
            return _applied(ScheduledForward(_original(model), decoded, tuple(namespaces), stale, engine), verify)
        except ScheduleError as error:
            raise ScheduleFaultsError(locate(data.decode(), error.faults)) from None


def _applied(step: ScheduledForward, verify: bool | Call) -> nn.Module:
    planned = _planned(step)
    if verify is not False:
        call = None if verify is True else verify
        verify_beside(step.model, planned, step.schedule, step.device, call)
    return planned


class ScheduledForward:
    """A schedule bound to a model, and compiled for the devices that it has been called on."""

    def __init__(
        self, model: nn.Module, schedule: Schedule, namespaces: tuple[str, ...], stale: Stale, engine: str
    ) -> None:
        self.model, self.schedule, self.namespaces, self.stale, self.engine = model, schedule, namespaces, stale, engine
        executes = engine_of(engine)
        self.calls = 0
        self._warned = False
        _permit(schedule, namespaces)
        verified = verify(schedule)
        live = operators(verified.linked.graph, verified.where, namespaces)
        self._bound = ModelBinding(model, schedule.model)
        self._guard = trusted(model, schedule, stale)
        self._inputs = Inputs(schedule.model.inputs, model.forward)
        self._detached = Detached(schedule.model.outputs)
        self._build = output_builder(schedule.model.outputs, model)
        names = [*self._inputs.names, *self._bound.names]
        self._steps = Steps(executes, verified.linked, tuple(output_leaves(schedule.model.outputs)), names, live)
        self.__signature__ = inspect.signature(model.forward)  # libraries look at forward's argument names
        self._steps.planned(self.device)

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self._bound.device()

    def stepped_aside(self, why: str) -> None:
        """Warn, once, that the model's own forward runs."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"the schedule steps aside: {why}", SteppedAsideWarning, stacklevel=5)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model, planned = self.model, self.schedule.model
        self.calls += 1
        if planned.training and not model.training:
            if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters()):
                self.stepped_aside(
                    "the model is in eval() mode with gradients on, so its own forward runs without a memory budget; "
                    "call it under torch.no_grad(), or train() it"
                )
            return model.forward(*args, **kwargs)
        if model.training and not planned.training:
            raise BindError(
                "the schedule was planned in eval() mode\n  call model.eval(), or plan again in train() mode"
            )
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            raise ExecutionError(
                "a schedule has gradients of backward() alone, not those of torch.func or forward-mode differentiation"
                "\n  use the original model there"
            )
        bound = self._bound
        bound.check_modules()
        self._guard.check()
        device = bound.device()
        check_autocast(planned.autocast, device)
        sources = [*self._inputs.flatten(args, kwargs, device), *bound.tensors(device)]
        values = run_step(self._steps.wanted(device, sources), sources)
        return self._build(self._detached.guard(values, sources))


def _permit(schedule: Schedule, namespaces: tuple[str, ...]) -> None:
    """Raise ScheduleError R050 if the schedule needs a permission that the caller did not give."""
    missing = [name for name in schedule.namespaces if name not in namespaces]
    if missing:
        listed = ", ".join(map(repr, missing))
        wanted = tuple(dict.fromkeys([*namespaces, *missing]))
        raise ScheduleError(
            "R050",
            f"the schedule names {listed} in `namespaces`, which was not permitted",
            f"/namespaces/{schedule.namespaces.index(missing[0])}",
            f"if you trust the file and the libraries: apply(model, schedule, namespaces={wanted!r}), "
            f"remate run --allow {' '.join(wanted)}",
        )


def _original(model: nn.Module) -> nn.Module:
    step = getattr(model, "_remate_step", None)
    return step.model if isinstance(step, ScheduledForward) else model


def _planned(step: ScheduledForward) -> nn.Module:
    """An instance of a subclass of the model's class, on the very attributes of the model."""
    base = type(step.model)
    made = type(
        base.__name__,
        (base,),
        {
            "__slots__": ("_remate_forward", "_remate_step"),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__reduce_ex__": _reduce,
            "__deepcopy__": _deepcopy,
            "forward": _Forward(base.forward),
        },
    )
    module = object.__new__(made)
    object.__setattr__(module, "__dict__", step.model.__dict__)
    object.__setattr__(module, "_remate_step", step)
    return module


class _Forward:
    """`forward` of a planned module: a data descriptor, because the shared attributes may hold a `forward` too."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __get__(self, module: Any, owner: type) -> Callable[..., Any]:
        if module is None:
            return self._original
        override = getattr(module, "_remate_forward", None) or getattr(module, "_remate_step", None)
        if override is None and "_is_replica" in vars(module):
            warnings.warn(
                "the schedule steps aside: a replica of DataParallel runs the model's own forward, without a memory "
                "budget; use DistributedDataParallel",
                SteppedAsideWarning,
                stacklevel=3,
            )
        # An instance that somebody else made of this class (`type(model)(config)`) has no schedule.
        return self._original.__get__(module, owner) if override is None else override

    def __set__(self, module: Any, value: Callable[..., Any]) -> None:
        object.__setattr__(module, "_remate_forward", value)
        type(module).__call__ = _call_replaced


def _call_replaced(module: Any, *args: Any, **kwargs: Any) -> Any:
    """`__call__` of a planned module whose forward somebody replaced: says so if the schedule does not run."""
    step = module._remate_step
    before = step.calls
    found = type(step.model).__call__(module, *args, **kwargs)
    if step.calls == before and torch.is_grad_enabled():
        replaced = module._remate_forward
        step.stepped_aside(
            f"its forward was replaced by {getattr(replaced, '__qualname__', type(replaced).__qualname__)!r}, which does "
            "not call it; wrap the forward that was there, or apply the schedule to the part that is trained by it"
        )
    return found


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    step = module._remate_step
    return _apply_again, (step.model, step.schedule, step.namespaces, step.stale, step.engine)


def _deepcopy(module: Any, memo: dict[int, Any]) -> nn.Module:
    step = module._remate_step
    return apply(
        copy.deepcopy(step.model, memo), step.schedule, namespaces=step.namespaces, stale=step.stale, engine=step.engine
    )


def _apply_again(
    model: nn.Module, schedule: Schedule, namespaces: tuple[str, ...], stale: Stale, engine: str
) -> nn.Module:
    return apply(model, schedule, namespaces=namespaces, stale=stale, engine=engine)
