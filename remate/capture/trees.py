"""Nested inputs and outputs of a model: their description for a schedule file, and their leaves.

A tree is a tuple, list, dict with text keys, named tuple, dataclass or, among inputs, an object with attributes; its
leaves are tensors and literals. Hugging Face outputs are both dict and dataclass; their fields that are None do not
count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from remate_runtime.bind import children, is_object, rebuild

from .sizes import TracedSize

_LITERALS = (type(None), bool, int, float, str)


def tensors(node: object) -> list[torch.Tensor]:
    """Return the tensor leaves in order."""
    if isinstance(node, torch.Tensor):
        return [node]
    inner = children(node)
    return [] if inner is None else [leaf for child in inner[1].values() for leaf in tensors(child)]


def substitute(node: object, leaves: list[Any]) -> Any:
    """Replace the tensor leaves of `node` by `leaves`, which are removed from the front of that list."""
    if isinstance(node, torch.Tensor):
        return leaves.pop(0)
    inner = children(node)
    if inner is None:
        return node
    return rebuild(node, {key: substitute(child, leaves) for key, child in inner[1].items()})


def describe(
    node: object,
    path: str,
    leaf: Callable[[torch.Tensor, str], dict[str, Any]],
    opaque: Callable[[Any, str], None],
    *,
    objects: bool = False,
) -> dict[str, Any]:
    """Return the tree for a schedule file.

    Args:
        node: A value.
        path: Its name.
        leaf: Describes a tensor.
        opaque: Receives objects that are no trees; they become null.
        objects: Whether objects with attributes are trees. The runtime can read them, but not make them.
    """
    if isinstance(node, torch.Tensor):
        return leaf(node, path)
    inner = children(node) if objects or not is_object(node) else None
    if inner is None:
        if type(node) in _LITERALS or isinstance(node, float | TracedSize):
            return {"literal": literal(node)}
        opaque(node, path)
        return {"literal": None}
    kind, parts = inner
    below = {
        key: describe(part, f"{path}.{key}" if path else key, leaf, opaque, objects=objects)
        for key, part in parts.items()
    }
    if kind == "record":
        return {"record": type(node).__name__, "fields": below}
    return {kind: below if kind == "dict" else list(below.values())}


def literal(value: object) -> Any:
    """Spell a Python literal for a schedule file. JSON has neither infinities nor nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, TracedSize):
        return int.__pos__(value)
    return float.__pos__(value) if isinstance(value, float) else value  # of a subclass, as NumPy's, too


def clean(name: str) -> str:
    """Replace the characters that ids may not contain."""
    return re.sub(r"[^A-Za-z0-9_.~-]", "~", name) or "~"


class UniqueNames:
    """Returns each name once: the second `x` becomes `x_2`."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._count: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        wanted = clean(wanted)
        while True:
            count = self._count[wanted] = self._count.get(wanted, 0) + 1
            name = wanted if count == 1 else f"{wanted}_{count}"
            if name not in self._taken:
                self._taken.add(name)
                return name
