"""What counts as a container in the inputs and outputs of a model: planner and runtime take them apart alike."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


def children(node: Any) -> tuple[str, dict[str, Any]] | None:
    """(kind, children by key) of a container; None for leaves and for what is none.

    Kinds: `tuple`, `list`, `dict` (any mapping with text keys), `record` (named tuple or dataclass). Hugging Face
    outputs
    are both mapping and dataclass: what they hold counts, fields that are None do not.
    """
    fields = getattr(node, "_fields", None)
    if isinstance(node, tuple) and fields is not None:
        return "record", dict(zip(fields, node, strict=True))
    if isinstance(node, tuple | list):
        return "tuple" if isinstance(node, tuple) else "list", {str(at): child for at, child in enumerate(node)}
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        if isinstance(node, Mapping):
            return "record", dict(node.items())
        return "record", {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    if isinstance(node, Mapping) and all(isinstance(key, str) for key in node):
        return "dict", dict(node.items())
    return None


def rebuild(node: Any, parts: dict[str, Any]) -> Any:
    """A container like `node` with other children, by key, in the order of `parts`."""
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(**parts)
    if isinstance(node, tuple | list):
        return (tuple if isinstance(node, tuple) else list)(parts.values())
    if type(node) is dict:
        return parts
    if isinstance(node, Mapping) and not isinstance(node, MutableMapping):
        make: Any = type(node)
        return make(parts)
    made = copy.copy(node)  # a constructor may want other arguments, or do more than store them
    if isinstance(made, MutableMapping) and not dataclasses.is_dataclass(made) and list(made) != list(parts):
        made.clear()
    for key, part in parts.items():
        if isinstance(made, MutableMapping):
            made[key] = part
        else:
            object.__setattr__(made, key, part)
    return made


def mapped(node: Any, leaf: Callable[[Any], Any]) -> Any:
    """`node` with `leaf` of each of its leaves, keys in their order."""
    inner = children(node)
    return leaf(node) if inner is None else rebuild(node, {key: mapped(part, leaf) for key, part in inner[1].items()})
