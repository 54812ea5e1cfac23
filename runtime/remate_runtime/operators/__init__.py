"""What must be known of operators and devices without torch: which a file may name, views, random ones, in-place forms, sizes."""

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
