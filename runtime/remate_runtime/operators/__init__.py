"""Tables of operators and devices: permitted names, views, in-place forms, random operators. Does not require torch."""

from __future__ import annotations

from .collectives import COLLECTIVES, COMMUNICATION, WAIT
from .rows import ROWS
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
    "COLLECTIVES",
    "COMMUNICATION",
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
    "ROWS",
    "TABLES",
    "VIEWS",
    "WAIT",
    "namespace",
    "permissible",
    "permission",
    "refusal",
]
