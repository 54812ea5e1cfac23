"""Live attributes: numbers of the model that a step reads at every call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from ..errors import BindError
from ..format.live_range import holds, range_text
from ..format.schedule import Live
from .values import MISSING, attribute

_HINT = "set it to a number, or plan again without live="


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
    """The live attributes of a model. Raises BindError for an attribute that is not a number in its range."""

    def __init__(self, model: nn.Module, planned: Mapping[str, Live]) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self._places = [_place(modules, path, live) for path, live in planned.items()]
        self.read()

    def read(self) -> list[float]:
        """Return the numbers in the order of the file, without running any code of the model.

        Raises:
            BindError: The step is not valid for a number.
        """
        return [_number(_found(place), place) for place in self._places]


def _place(modules: Mapping[str, nn.Module], path: str, live: Live) -> _LivePlace:
    *holders, name = path.split(".")
    known = next(count for count in range(len(holders), -1, -1) if ".".join(holders[:count]) in modules)
    return _LivePlace(path, modules[".".join(holders[:known])], tuple(holders[known:]), name, live)


def _found(place: _LivePlace) -> Any:
    holder: Any = place.module
    for part in place.configs:
        holder = attribute(holder, part)
    return attribute(holder, place.name)


def _number(value: object, place: _LivePlace) -> float:
    path, live = place.path, place.live
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BindError(f"live attribute {path!r} is {_kind(value)}, and the schedule reads a number\n  {_HINT}")
    if isinstance(value, int) and isinstance(live.planned, float):
        raise BindError(f"live attribute {path!r} is the integer {value}, planned was a float\n  write {value}.0")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not holds(live, number) or number != value:
        raise BindError(
            f"live attribute {path!r} is {value!r}, and the schedule is for {range_text(live)}: forward does something "
            "else there\n  plan again with such a value, or let the model's own forward run: apply(..., "
            "otherwise='original')"
        )
    return number


def _kind(value: object) -> str:
    return "missing" if value is MISSING else f"of type {type(value).__name__}"
