"""The order of keys in a call. A forward that iterates over mappings or `**kwargs` may depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BindError
from .containers import children, rebuild


class OrderError(BindError):
    """Raised if only the order of keys differs between a call and the recorded one."""


def order_error(what: str, planned: list[str]) -> OrderError:
    """Return the error for a different order. Forward may iterate over a mapping (`for x in batch.values()`)."""
    return OrderError(
        f"the {what} come in another order than when planning, and forward does not do the same with them then"
        f"\n  give them as planned: {', '.join(planned)}"
    )


def order_of(arguments: Any) -> Any:
    """Return the keys of all containers in order, as a hashable value; None without containers."""
    inner = children(arguments)
    if inner is None:
        return None
    return tuple((key, order_of(part)) for key, part in inner[1].items())


def arranged(node: Mapping[str, Any], argument: Any) -> Any:
    """Return arguments that fit a node of the inputs tree with the keys of mappings in the recorded order."""
    inner = children(argument)
    if inner is None:
        return argument
    nodes = node.get("dict") or node.get("fields") or node.get("tuple") or node.get("list") or {}
    named = nodes.items() if isinstance(nodes, Mapping) else enumerate(nodes)
    parts = {str(key): arranged(part, inner[1][str(key)]) for key, part in named}
    if all(part is inner[1][key] for key, part in parts.items()) and list(parts) == list(inner[1]):
        return argument
    return rebuild(argument, parts)
