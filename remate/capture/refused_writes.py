"""Refuses writes of a step to anything but buffers, with the module and the line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NoReturn

from torch import nn
from torch.fx import Node

from ..errors import CaptureError
from .lower import Source
from .origins import Origin
from .static_parts import static_parts
from .torch_api import GRADIENT, MUTATION, OUTPUT, Port

_COPIED = "write into a copy (x = x.clone()), or make the tensor that forward changes a buffer"
_AVERAGED = (
    "move the update to the training loop, directly before the call (an average of other weights, a limit): it "
    "computes the same; or make it a buffer"
)
Ends = Collection[tuple[Port, Node | None]]
Origins = Mapping[Node, Origin]


def refuse_differentiated(
    inputs: Iterable[Port], ends: Ends, origins: Origins, source: Callable[[Port], Source], model: nn.Module
) -> None:
    """Raise CaptureError if forward writes a differentiable tensor into an input of the step. inputs, ends: of the
    joint graph. source: returns the Source of an input."""
    written = {port.key: node for port, node in ends if port.kind == MUTATION}
    names = _parameters(map(source, written))
    for port in inputs:
        if isinstance(port.key, Port):
            place = source(port.key)
            message = f"forward writes a tensor that has a gradient into {place.kind} {place.name!r}"
            hint = (
                "write a detached value, under torch.no_grad(), and into buffers only; "
                "limit parameters in the training loop, directly before the call"
            )
            _refuse(message, hint, _origin(written.get(port.key), origins), model, place, names)


def refuse_writes(
    ends: Ends, inputs: Mapping[Node, Source], origins: Origins, source: Callable[[Port], Source], model: nn.Module
) -> None:
    """Raise CaptureError if anything but buffers is updated, or anything but parameters and inputs has a gradient.
    inputs: the Source of each placeholder. Other arguments: see `refuse_differentiated`."""
    names = _parameters(source(port.key) for port, _ in ends if port.kind == MUTATION)
    for port, node in ends:
        if port.kind == OUTPUT or node is None:
            continue
        place = source(port.key)
        if port.kind == GRADIENT and place.kind == "buffer":
            raise CaptureError(f"buffer {place.name!r} gets a gradient", hint="make it a Parameter")
        if port.kind == MUTATION and place.kind != "buffer" and inputs.get(node) != place:
            hint = _AVERAGED if place.kind == "parameter" else _COPIED
            origin = _origin(node, origins)
            _refuse(f"forward writes into {place.kind} {place.name!r}", hint, origin, model, place, names)


def _parameters(places: Iterable[Source]) -> list[str]:
    return [place.name for place in places if place.kind == "parameter"]


def _origin(node: Node | None, origins: Origins) -> Origin:
    return Origin() if node is None else origins.get(node, Origin())


def _refuse(
    message: str, hint: str, origin: Origin, model: nn.Module, place: Source, names: Collection[str]
) -> NoReturn:
    """Raise CaptureError with the parts that have none of the written parameters. names: of these."""
    owner = place.name.rpartition(".")[0] if place.kind == "parameter" else ""
    failed = origin.module or owner
    parts = [part for part in static_parts(model, failed) if not any(name.startswith(f"{part}.") for name in names)]
    raise CaptureError(message, origin.module, origin.place.line, hint, parts)
