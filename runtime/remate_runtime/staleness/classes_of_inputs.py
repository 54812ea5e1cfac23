"""Classes of a call's inputs: forward may call their methods, and read their attributes, without naming them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import nn

from ..bind.containers import children
from .ownership import is_own


def input_classes(call: object) -> dict[str, type]:
    """Return the user's classes of the objects and records of a call, by `module.name`.

    A class inside a function is left out: another process could not find it.
    """
    classes = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _classes(call) if is_own(kind.__module__)}
    return {name: kind for name, kind in sorted(classes.items()) if _at(kind.__module__, kind.__qualname__) is kind}


def loaded_class(name: str, model: nn.Module) -> type | None:
    """Return a class of `input_classes`; None if no module that is loaded has it.

    The main module of one process can be an ordinary one of another, so the model's modules are searched, too.
    """
    place, _, last = name.rpartition(".")
    while place and place not in sys.modules:
        place, _, above = place.rpartition(".")
        last = f"{above}.{last}"
    places = [place, *(type(module).__module__ for module in model.modules()), "__main__"]
    found = (_at(place, last) for place in dict.fromkeys(places))
    return next((kind for kind in found if isinstance(kind, type)), None)


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
