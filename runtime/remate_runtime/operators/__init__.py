"""Tables of operators and devices: permitted names, views, in-place forms, random operators. Does not require torch."""

from __future__ import annotations

from .tables import (
    COPIED,
    DEVICES,
    IN_PLACE,
    LITERALS,
    NAMESPACES,
    NOT_RANDOM,
    OPERATORS,
    PAIRED,
    PERMISSION,
    RANDOM,
    REFUSED,
    TABLES,
    VIEWS,
    namespace,
    permissible,
    permission,
    refusal,
)

__all__ = [
    "COPIED",
    "DEVICES",
    "IN_PLACE",
    "LITERALS",
    "NAMESPACES",
    "NOT_RANDOM",
    "OPERATORS",
    "PAIRED",
    "PERMISSION",
    "RANDOM",
    "REFUSED",
    "TABLES",
    "VIEWS",
    "namespace",
    "permissible",
    "permission",
    "refusal",
]
