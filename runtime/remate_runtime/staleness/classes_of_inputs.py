"""Classes of a call's inputs: forward may call their methods, and read their attributes, without naming them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import nn

from ..bind.containers import children
from .ownership import is_own, qualified


def input_classes(call: object) -> dict[str, type]:
    """Return the user's classes of the objects and records of a call, by `module.name`.

    A class inside a function is left out: another process could not find it.
    """
    kinds = [kind for kind in _classes(call) if is_own(kind.__module__)]
    by_name = {qualified(kind): kind for kind in kinds if _at(kind.__module__, kind.__qualname__) is kind}
    return dict(sorted(by_name.items()))


def loaded_class(name: str, model: nn.Module) -> type | None:
    """Return a class of `input_classes`; None if no module that is loaded has it.

    A module can have another name in another process, as the main module has. So the modules of the model's classes are
    searched, too.
    """
    parts = name.split(".")
    splits = [(".".join(parts[:at]), ".".join(parts[at:])) for at in range(len(parts) - 1, 0, -1)]
    others = dict.fromkeys([*(type(module).__module__ for module in model.modules()), "__main__"])
    places = [*splits, *((place, path) for place in others for _, path in reversed(splits))]
    return next((kind for place, path in places if isinstance(kind := _at(place, path), type)), None)


def _classes(node: object) -> Iterator[type]:
    inner = children(node)
    if inner is not None:
        if type(node) not in (tuple, list, dict):
            yield type(node)
        for child in inner[1].values():
            yield from _classes(child)


def _at(module: str, path: str) -> object:
    value: object = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
