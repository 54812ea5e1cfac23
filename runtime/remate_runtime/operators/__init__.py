"""What must be known of operators and devices without torch: views, random ones, in-place forms, sizes."""

from __future__ import annotations

from .tables import COPIED, DEVICES, IN_PLACE, NAMESPACES, NOT_RANDOM, RANDOM, REFUSED, TABLES, VIEWS, namespace

__all__ = [
    "COPIED",
    "DEVICES",
    "IN_PLACE",
    "NAMESPACES",
    "NOT_RANDOM",
    "RANDOM",
    "REFUSED",
    "TABLES",
    "VIEWS",
    "namespace",
]
