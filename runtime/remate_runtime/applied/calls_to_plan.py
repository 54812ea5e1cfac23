"""Writes the `remate.plan` call for a model call that no schedule fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..bind.changed_numbers import changed_numbers
from ..bind.containers import children
from ..flat_step.expansion import expand
from ..format.json_values import is_object
from ..format.schedule import Schedule
from ..format.sized_type import open_axes
from ..link.linker import link
from ..link.simulator import peak_together
from ..operator_calls.overloads import is_dense
from ..staleness.compare import tensors_of
from .other_sizes import SizeRequest, range_of_size, size_request

_LONG = 600  # most characters of a call in a message
_RECORD = "with remate.record(model) as call: …  # the loop; then remate.plan(call, {at}budget={budget})"


def plan_call(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], schedule: Schedule) -> str:
    """Return the `remate.plan` call that fits a call of the model, as Python code to copy.

    It keeps the budget and outputs of `schedule`. For a call of other sizes, it also covers the sizes of the file. For
    long calls and for values that Python code cannot express, it is code that records the call.
    """
    settings, request = schedule.solve.settings, size_request(schedule, args, kwargs)
    budget = _budget_of(schedule) if request is None else _budget_at_sizes(schedule, request)
    live = list(schedule.model.live if settings is None else settings.live)
    live += [n for n, value in _changed(schedule, model, args, kwargs).items() if isinstance(value, float)]
    read = f", live={live!r}" if live else ""
    try:
        written = _call(args, kwargs, {} if request is None else _shapes(schedule, request, args, kwargs))
    except ValueError:
        written = ""
    if not written or len(written) > _LONG:
        return _RECORD.format(at="", budget=budget + read)
    chosen = (
        f", differentiate={list(settings.differentiate)!r}" if settings is not None and settings.differentiate else ""
    )
    mode = "" if _mixed(model) else ".train()" if model.training else ".eval()"
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sizes = request.dims if request is not None else _named(schedule) if schedule.model.dims else {}
    opened = f", dims={sizes!r}" if sizes else ""
    if schedule.solve.gradients != "retained":
        opened += f", gradients={schedule.solve.gradients!r}"
    text = f"remate.plan(model{mode}, {written}, budget={budget}{chosen}{opened}{read})"
    if torch.is_autocast_enabled(device.type):
        text = f"with torch.autocast({device.type!r}, {torch.get_autocast_dtype(device.type)}): {text}"
    alone = request.alone if request is not None else ""
    return f"{text}  # {alone} has its own step: apply(model, [this, the schedule])" if alone else text


def _mixed(model: nn.Module) -> bool:
    """Return whether modules are in another mode than the model, as frozen batch norms are."""
    return any(module.training != model.training for module in model.modules())


def _changed(
    schedule: Schedule, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, int | float]:
    return changed_numbers(schedule.model.inputs, model.forward, tuple(args), dict(kwargs))


def plan_parts_call(schedules: Sequence[Schedule]) -> str:
    """Return code that plans parts of a model again by recording a call of the whole model."""
    kinds = {schedule.model.at: schedule for schedule in schedules}
    at, budget = [path for paths in kinds for path in paths], _budget_of(schedules[0])
    if len(kinds) > 1:  # each schedule has the budget of its own calls
        expanded = [expand(schedule) for schedule in kinds.values()]
        budget = str(peak_together([link(whole.graph, whole.recomputes, whole.pages) for whole in expanded]))
    return _RECORD.format(at=f"at={(at if at[1:] else at[0])!r}, ", budget=budget)


def _budget_of(schedule: Schedule) -> str:
    settings = schedule.solve.settings
    return _budget(settings.budget if settings is not None else str(schedule.solve.budget))


def _budget_at_sizes(schedule: Schedule, request: SizeRequest) -> str:
    """Return the budget of the file in bytes if it is enough; otherwise its share, or its bytes as far as possible."""
    if request.in_bytes:
        return str(schedule.solve.budget)
    text = _budget_of(schedule)
    return text if "%" in text else f'{schedule.solve.budget}, on_infeasible="smallest"'


def _named(schedule: Schedule) -> dict[str, dict[int, str] | int]:
    """Return the sizes that the file leaves open, as `remate.plan` takes them."""
    inputs, dims = schedule.model.inputs, schedule.model.dims or {}
    axes_by_name: dict[str, dict[int, str]] = {}
    for tree in (*inputs.get("args", ()), *inputs.get("kwargs", {}).values()):
        if is_object(tree) and "tensor" in tree and (named := open_axes(tree["tensor"], dims)):
            axes_by_name[tree["name"]] = {axis: range_of_size(name, dims[name]) for axis, name in named.items()}
    return {**axes_by_name, **schedule.model.limits}


def _budget(text: str) -> str:
    return text if text.isdecimal() else json.dumps(text)


def _shapes(
    schedule: Schedule, request: SizeRequest, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[int, tuple[int, ...]]:
    """Return the shapes of an example, by the identity of the tensor of the call."""
    trees = schedule.model.inputs.get("args", ())
    named = [(tree.get("name"), given) for tree, given in zip(trees, args, strict=False)]
    return {
        id(given): tuple(request.shapes[name].get(at, size) for at, size in enumerate(given.shape))
        for name, given in [*named, *kwargs.items()]
        if name in request.shapes and isinstance(given, torch.Tensor)
    }


def _call(args: Sequence[object], kwargs: Mapping[str, object], shapes: Mapping[int, tuple[int, ...]]) -> str:
    tensors = list(tensors_of((args, kwargs)))
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise ValueError  # forward may test which tensors are identical
    positional = _sequence([_written(argument, shapes) for argument in args], "()")
    return f"{positional}, {_written(dict(kwargs), shapes)}" if kwargs else positional


def _written(argument: object, shapes: Mapping[int, tuple[int, ...]]) -> str:
    """Write an example of the same type, with zeros, which are valid indices. shapes: by tensor, if they differ.

    Raises:
        ValueError: Code cannot express it.
    """
    if isinstance(argument, torch.Tensor):
        if argument.is_nested:
            raise ValueError
        return _tensor(argument, shapes.get(id(argument), tuple(argument.shape)))
    inner = children(argument)
    if inner is None:
        if isinstance(argument, float):
            return repr(float(argument))  # NumPy's name their type
        if isinstance(argument, bool | int | str | None):
            return repr(argument)
        raise ValueError
    kind, parts = inner
    texts = {key: _written(part, shapes) for key, part in parts.items()}
    if kind == "dict":
        return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in texts.items()) + "}"
    if isinstance(argument, torch.Size):
        return f"torch.Size({_sequence(list(texts.values()), '[]')})"
    if kind == "record":
        raise ValueError
    return _sequence(list(texts.values()), "()" if kind == "tuple" else "[]")


def _sequence(texts: list[str], brackets: str) -> str:
    comma = "," if len(texts) == 1 and brackets == "()" else ""
    return f"{brackets[0]}{', '.join(texts)}{comma}{brackets[1]}"


def _tensor(given: torch.Tensor, shape: tuple[int, ...]) -> str:
    if not is_dense(given):
        raise ValueError
    axes = ", ".join(map(str, shape)) or "()"
    dtype = "" if given.dtype is torch.get_default_dtype() else f", dtype={given.dtype}"
    device = "" if given.device.type == "cpu" else f", device={given.device.type!r}"
    grad = ", requires_grad=True" if given.requires_grad else ""
    return f"torch.zeros({axes}{dtype}{device}{grad})"
