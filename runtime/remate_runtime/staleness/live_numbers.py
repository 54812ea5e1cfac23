"""Live attributes and live inputs: numbers of the model and of the call that a step reads at every call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.inputs import Accept, Inputs
from ..bind.modules import modules_by_path
from ..errors import BindError
from ..format.live_range import holds, range_text
from ..format.schedule import Live, Model
from ..format.signature import live_inputs
from .values import MISSING, attribute

_HINT = "set it to a number, or plan again without live="
_CPU = torch.device("cpu")


class _LivePlace(NamedTuple):
    """The location of a live attribute.

    Attributes:
        path: Full path of the attribute.
        module: The module.
        configs: Attributes that lead from the module to the holder (configs).
        name: Name in the holder.
        live: What the file records.
    """

    path: str
    module: nn.Module
    configs: tuple[str, ...]
    name: str
    live: Live


class LiveNumbers:
    """The live attributes of a model, and the live inputs of its calls.

    Args:
        model: The live model.
        planned: The model of the schedule.

    Raises:
        BindError: An attribute is not a number in its range.
    """

    def __init__(self, model: nn.Module, planned: Model) -> None:
        modules = modules_by_path(model)
        inputs = {*live_inputs(planned.inputs)}
        self._live = planned.live
        self._places = [_place(modules, path, live) for path, live in planned.live.items() if path not in inputs]
        self._inputs = Inputs(planned.inputs, model.forward, ordered=False, leaf=_input) if inputs else None
        for place in self._places:
            _number(_found(place), place.live, f"live attribute {place.path!r}")

    def read(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> list[float]:
        """Return the numbers in the order of the file, without running any code of the model.

        Args:
            args: Positional arguments of a call that fits the schedule otherwise.
            kwargs: Its keyword arguments.

        Raises:
            BindError: The step is not valid for a number.
        """
        if self._inputs is None:
            return [_number(_found(place), place.live, f"live attribute {place.path!r}") for place in self._places]
        given: dict[str, object] = dict(self._inputs.flatten(args, kwargs, _CPU))
        numbers = {name: _number(value, self._live[name], f"live input {name!r}") for name, value in given.items()}
        for place in self._places:
            numbers[place.path] = _number(_found(place), place.live, f"live attribute {place.path!r}")
        return [numbers[name] for name in self._live]


def _input(node: Mapping[str, Any], label: str) -> Accept:
    """Return what collects the name and the value of a live input, and ignores other leaves."""

    def run(argument: object, device: torch.device, pairs: list[Any]) -> None:
        if "live" in node:
            pairs.append((node["live"], argument))

    return run


def _place(modules: Mapping[str, nn.Module], path: str, live: Live) -> _LivePlace:
    *holders, name = path.split(".")
    known = next(count for count in range(len(holders), -1, -1) if ".".join(holders[:count]) in modules)
    return _LivePlace(path, modules[".".join(holders[:known])], tuple(holders[known:]), name, live)


def _found(place: _LivePlace) -> Any:
    holder: Any = place.module
    for part in place.configs:
        holder = attribute(holder, part)
    return attribute(holder, place.name)


def _number(value: object, live: Live, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BindError(f"{what} is {_kind(value)}, and the schedule reads a number\n  {_HINT}")
    if isinstance(value, int) and isinstance(live.planned, float):
        raise BindError(f"{what} is the integer {value}, planned was a float\n  write {value}.0")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not holds(live, number) or number != value:
        raise BindError(
            f"{what} is {value!r}, and the schedule is for {range_text(live)}: forward does something "
            "else there\n  plan again with such a value, or let the model's own forward run: apply(..., "
            "otherwise='original')"
        )
    return number


def _kind(value: object) -> str:
    return "missing" if value is MISSING else f"of type {type(value).__name__}"
