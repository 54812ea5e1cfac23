"""What must be known of operators without torch: views, random ones, in-place forms."""

from __future__ import annotations

from .tables import IN_PLACE, NAMESPACES, NOT_RANDOM, OVERALLOCATING, RANDOM, REFUSED, VIEWS, namespace

__all__ = ["IN_PLACE", "NAMESPACES", "NOT_RANDOM", "OVERALLOCATING", "RANDOM", "REFUSED", "VIEWS", "namespace"]
