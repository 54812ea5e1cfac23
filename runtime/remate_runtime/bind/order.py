"""The order of keys in a call. The result of a forward that iterates over mappings or `**kwargs` may depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BindError
from .containers import children, is_mapping, rebuild


class OrderError(BindError):
    """A call differs from the recorded call only in the order of its keys."""


def order_error(what: str, planned: list[str]) -> OrderError:
    """Return the error for another order of keys."""
    return OrderError(
        f"the {what} have another order than when planning, and forward computes something else with it"
        f"\n  pass them in the planned order: {', '.join(planned)}"
    )


def order_of(arguments: object) -> Any:
    """Return the keys of all containers in order, as a hashable value; None without containers."""
    inner = children(arguments)
    if inner is None:
        return None
    return tuple((key, order_of(part)) for key, part in inner[1].items())


def arranged(node: Mapping[str, Any], argument: Any) -> Any:
    """Return an argument with the keys of its mappings in the recorded order."""
    inner = children(argument)
    if inner is None:
        return argument
    nodes: Any = node.get("dict") or node.get("fields") or node.get("tuple") or node.get("list") or {}
    named = nodes.items() if is_mapping(nodes) else enumerate(nodes)
    parts = {str(key): arranged(part, inner[1][str(key)]) for key, part in named}
    if all(part is inner[1][key] for key, part in parts.items()) and list(parts) == list(inner[1]):
        return argument
    return rebuild(argument, parts)
