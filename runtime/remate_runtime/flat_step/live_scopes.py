"""The meaning of names of live attributes in each block instance.

They are separate from values: no reference resolves to a live attribute, and no number to a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ScheduleError
from ..format.signature import escape
from ..format.suggest import did_you_mean
from .causes import Causes
from .layout import InstanceSpan


def scopes_of_live(places: Sequence[InstanceSpan], model: Mapping[str, int], causes: Causes) -> list[dict[str, int]]:
    """Return for each place the values of the names in `live` of its block.

    Names in `with` belong to the enclosing block or the model; the prefix resolves the others.

    Args:
        places: The instances.
        model: The model's live attributes by path.
        causes: Faults (R030, R031, R037) are added here.
    """
    scopes: list[dict[str, int]] = []
    for place in places:
        above = scopes[place.parent] if place.parent >= 0 else model
        scopes.append(_scope(place, above, model, causes))
    return scopes


def _scope(place: InstanceSpan, above: Mapping[str, int], model: Mapping[str, int], causes: Causes) -> dict[str, int]:
    scope: dict[str, int] = {}
    for name in place.block.live:
        if name in scope:
            message = f"{name[:120]!r} has two meanings in the block"
            causes.add(ScheduleError("R031", message), place.where, place.block_name, name)
        given = place.instance.bindings.get(name)
        full = f"{place.prefix}.{name}" if place.prefix else name
        value = model.get(full) if given is None else above.get(given.removeprefix("%"))
        if value is not None:
            scope[name] = value
        elif given is None:
            hint = did_you_mean(full, model, "add it under `model.live`, or bind it in `with`")
            fault = ScheduleError("R037", f"the model has no live attribute {full[:120]!r}", "", hint)
            causes.add(fault, place.where, place.block_name, name)
        else:
            hint = did_you_mean(given.removeprefix("%"), above, "name a live attribute", "%")
            fault = ScheduleError("R030", f"{given[:120]!r} is no live attribute here", "", hint)
            causes.add(fault, f"{place.where}/with/{escape(name)}")
    return scope
