"""Values that leave the device and come back, on top of recomputations or without them."""

from __future__ import annotations

from .greedy import Paged, page
from .mixed import PAGED_STRATEGIES, PagingLimits, paged_solution

__all__ = ["PAGED_STRATEGIES", "Paged", "PagingLimits", "page", "paged_solution"]
