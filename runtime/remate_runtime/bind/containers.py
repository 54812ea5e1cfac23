"""Containers in the inputs and outputs of a model. Planner and runtime decompose them in the same way."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


def children(node: object) -> tuple[str, dict[str, Any]] | None:
    """Return the kind and the children by key of a container; None for leaves and other objects.

    Kinds are `tuple`, `list`, `dict` (a mapping with text keys) and `record` (a named tuple or dataclass). Hugging Face
    outputs are both mapping and dataclass; only their items count, so fields that are None are left out.
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


def rebuild(node: object, parts: dict[str, Any]) -> Any:
    """Return a container like `node` with other children, by key, in the order of `parts`."""
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(**parts)
    if isinstance(node, tuple | list):
        return (tuple if isinstance(node, tuple) else list)(parts.values())
    if type(node) is dict:
        return parts
    if isinstance(node, Mapping) and not isinstance(node, MutableMapping):
        make: Any = type(node)
        return make(parts)
    copied = copy.copy(node)  # the constructor may take other arguments, or do more than store them
    if isinstance(copied, MutableMapping) and not dataclasses.is_dataclass(copied) and list(copied) != list(parts):
        copied.clear()
    for key, part in parts.items():
        if isinstance(copied, MutableMapping):
            copied[key] = part
        else:
            object.__setattr__(copied, key, part)
    return copied


def mapped(node: object, leaf: Callable[[Any], object]) -> Any:
    """Return `node` with `leaf` applied to each of its leaves, in the order of keys."""
    inner = children(node)
    return leaf(node) if inner is None else rebuild(node, {key: mapped(part, leaf) for key, part in inner[1].items()})
