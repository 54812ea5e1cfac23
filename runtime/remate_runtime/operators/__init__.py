"""Tables of operators and devices: what a file may name, views, in-place forms, random ones. Needs no torch."""

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
