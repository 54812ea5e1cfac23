"""The order of keys in a call: what a forward that walks through mappings or `**kwargs` may go by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BindError
from .containers import children, rebuild


class OrderError(BindError):
    """A call is the recorded one but for the order of its keys."""


def order_error(what: str, planned: list[str]) -> OrderError:
    """Forward may walk through a mapping (`for x in batch.values()`), and then the order decides what it computes."""
    return OrderError(
        f"the {what} come in another order than when planning, and forward does not do the same with them then"
        f"\n  give them as planned: {', '.join(planned)}"
    )


def order_of(given: Any) -> Any:
    """The keys of all containers in `given`, in their order; None where there is none. Hashable."""
    inner = children(given)
    if inner is None:
        return None
    return tuple((key, order_of(part)) for key, part in inner[1].items())


def arranged(node: Mapping[str, Any], given: Any) -> Any:
    """`given`, which fits a node of the inputs tree, with the keys of its mappings in the recorded order."""
    inner = children(given)
    if inner is None:
        return given
    nodes = node.get("dict") or node.get("fields") or node.get("tuple") or node.get("list") or {}
    named = nodes.items() if isinstance(nodes, Mapping) else enumerate(nodes)
    parts = {str(key): arranged(part, inner[1][str(key)]) for key, part in named}
    if all(part is inner[1][key] for key, part in parts.items()) and list(parts) == list(inner[1]):
        return given
    return rebuild(given, parts)
