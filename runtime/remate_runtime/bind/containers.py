"""What counts as a container in the inputs and outputs of a model: planner and runtime take them apart alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def children(node: Any) -> tuple[str, dict[str, Any]] | None:
    """(kind, children by key) of a container; None for leaves and for what is none.

    Kinds: `tuple`, `list`, `dict` (any mapping with text keys), `record` (named tuple or dataclass). Hugging Face outputs
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
