"""`apply(model, schedule)`: the model, with its training step executed by the schedule.

The result is another view of the same model: an instance of a subclass of the model's class that shares the model's
attributes, so parameters, buffers, submodules, hooks, train/eval mode, `state_dict`, `config` and methods are the same.
Only `forward` differs.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from .bind.inputs import Inputs
from .bind.model_binding import ModelBinding, check_autocast
from .bind.outputs import Detached, output_builder
from .engine.eager.execute import Leaf, execute
from .engine.eager.program import Program, operators, prepare
from .errors import BindError, ScheduleError, ScheduleFaultsError
from .format.positions import locate
from .format.reader import decode, read
from .format.schedule import Schedule
from .format.signature import output_leaves
from .gc_pause import gc_paused
from .link.linker import Linked
from .link.verifier import verify


def apply(model: nn.Module, schedule: Schedule | str | os.PathLike[str], *, namespaces: Collection[str] = ()) -> Any:
    """Give `model` the schedule's training step. Returns an `nn.Module` that shares everything with `model`.

    schedule: a Schedule or the path of a schedule file. namespaces: operator namespaces that may run beyond `aten`,
    `prims` and `torchvision`, of libraries that you trust; the file lists those that it needs.

    In train mode (or whatever mode the file was planned in) a call runs the schedule, and its gradients are those of
    the model; in eval mode a schedule planned for training steps aside and the model's own forward runs. Submodules are
    not called: hooks on the model itself run, hooks on its submodules do not.

    Raises ScheduleError (the file is no legal schedule) and BindError (it is not of this model); calls raise BindError
    (other shapes, other mode) and ExecutionError (backward twice, tensors changed before backward).
    """
    with gc_paused():
        if isinstance(schedule, Schedule):
            return _planned(ScheduledForward(_original(model), schedule, tuple(namespaces)))
        data = read(schedule)
        decoded = decode(data)
        try:
            return _planned(ScheduledForward(_original(model), decoded, tuple(namespaces)))
        except ScheduleError as error:
            raise ScheduleFaultsError(locate(data.decode(), error.faults)) from None


class ScheduledForward:
    """A schedule bound to a model, and compiled for the devices that it has been called on."""

    def __init__(self, model: nn.Module, schedule: Schedule, namespaces: tuple[str, ...]) -> None:
        self.model, self.schedule, self.namespaces = model, schedule, namespaces
        _permit(schedule, namespaces)
        verified = verify(schedule)
        self._linked = verified.linked
        self._operators = operators(self._linked.graph, verified.where, namespaces)
        self._bound = ModelBinding(model, schedule.model)
        self._inputs = Inputs(schedule.model.inputs, model.forward)
        self._detached = Detached(schedule.model.outputs)
        self._build = output_builder(schedule.model.outputs, model)
        self._leaves = _leaves(self._linked, schedule)
        self._programs: dict[torch.device, Program] = {}
        self.__signature__ = inspect.signature(model.forward)  # libraries look at forward's argument names
        self._program(self._bound.device())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model, planned = self.model, self.schedule.model
        if planned.training and not model.training:
            return model.forward(*args, **kwargs)
        if model.training and not planned.training:
            raise BindError(
                "the schedule was planned in eval() mode\n  call model.eval(), or plan again in train() mode"
            )
        bound = self._bound
        bound.check_modules()
        device = bound.device()
        check_autocast(planned.autocast, device)
        program = self._programs.get(device) or self._program(device)
        sources = [*self._inputs.flatten(args, kwargs, device), *bound.tensors(device)]
        values = execute(program, self._leaves, sources)
        return self._build(self._detached.guard(values, sources))

    def _program(self, device: torch.device) -> Program:
        names = [*self._inputs.names, *self._bound.names]
        made = prepare(self._linked, self._operators, names, device)
        self._programs[device] = made
        return made


def _permit(schedule: Schedule, namespaces: tuple[str, ...]) -> None:
    """Raise ScheduleError R050 if the schedule runs operators of a library that the caller did not permit."""
    missing = [name for name in schedule.namespaces if name not in namespaces]
    if missing:
        libraries = ", ".join(map(repr, missing))
        wanted = tuple(dict.fromkeys([*namespaces, *missing]))
        raise ScheduleError(
            "R050",
            f"the schedule runs operators of {libraries}, which were not permitted",
            f"/namespaces/{schedule.namespaces.index(missing[0])}",
            f"if you trust what registers them: apply(model, schedule, namespaces={wanted!r}), "
            f"remate run --allow {' '.join(wanted)}",
        )


def _leaves(linked: Linked, schedule: Schedule) -> tuple[Leaf, ...]:
    values = linked.graph.values
    names = {value.name: index for index, value in enumerate(values)}
    leaves = []
    for leaf in output_leaves(schedule.model.outputs):
        value = names[leaf.text[1:]]
        leaves.append(Leaf(value, leaf.name, values[value].type.dense, f"grad.{leaf.name}" if leaf.grad else None))
    return tuple(leaves)


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
        # An instance that somebody else made of this class (`type(model)(config)`) has no schedule.
        return self._original.__get__(module, owner) if override is None else override

    def __set__(self, module: Any, value: Callable[..., Any]) -> None:
        object.__setattr__(module, "_remate_forward", value)


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    step = module._remate_step
    return _apply_again, (step.model, step.schedule, step.namespaces)


def _deepcopy(module: Any, memo: dict[int, Any]) -> nn.Module:
    step = module._remate_step
    return apply(copy.deepcopy(step.model, memo), step.schedule, namespaces=step.namespaces)


def _apply_again(model: nn.Module, schedule: Schedule, namespaces: tuple[str, ...]) -> nn.Module:
    return apply(model, schedule, namespaces=namespaces)
