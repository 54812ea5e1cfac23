"""Live attributes: numbers that a step reads from the model at every call."""

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


class _Place(NamedTuple):
    """Where a live attribute is: path, module, what leads from the module to its holder (configs), its name."""

    path: str
    module: nn.Module
    configs: tuple[str, ...]
    name: str
    live: Live


class LiveNumbers:
    """The live attributes of a model. Raises BindError for one that is no number of its range."""

    def __init__(self, model: nn.Module, planned: Mapping[str, Live]) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self._places = [_place(modules, path, live) for path, live in planned.items()]
        self.read()

    def read(self) -> list[float]:
        """The numbers, in the order of the file. Nothing of the model runs. Raises BindError for one that the step is
        not for."""
        return [_number(_found(place), place) for place in self._places]


def _place(modules: Mapping[str, nn.Module], path: str, live: Live) -> _Place:
    *holders, name = path.split(".")
    known = next(count for count in range(len(holders), -1, -1) if ".".join(holders[:count]) in modules)
    return _Place(path, modules[".".join(holders[:known])], tuple(holders[known:]), name, live)


def _found(place: _Place) -> Any:
    holder: Any = place.module
    for part in place.configs:
        holder = attribute(holder, part)
    return attribute(holder, place.name)


def _number(found: Any, place: _Place) -> float:
    path, live = place.path, place.live
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BindError(f"live attribute {path!r} is {_kind(found)}, and the schedule reads a number\n  {_HINT}")
    if isinstance(found, int) and isinstance(live.planned, float):
        raise BindError(f"live attribute {path!r} is the integer {found}, planned was a float\n  write {found}.0")
    try:
        number = float(found)
    except OverflowError:
        number = math.inf
    if not holds(live, number) or number != found:
        raise BindError(
            f"live attribute {path!r} is {found!r}, and the schedule is for {range_text(live)}: forward does "
            "something else "
            "there\n  plan again with such a value, or let the model's own forward run: apply(..., "
            "otherwise='original')"
        )
    return number


def _kind(found: Any) -> str:
    return "not there" if found is MISSING else f"of type {type(found).__name__}"
