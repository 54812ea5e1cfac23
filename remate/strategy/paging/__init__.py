"""Values that leave the device and come back, on top of recomputations or without them; parameters and gradients that
do."""

from __future__ import annotations

from .greedy import Paged, page
from .mixed import PAGED_STRATEGIES, PagingLimits, paged_solution
from .offloading import offloaded

__all__ = ["PAGED_STRATEGIES", "Paged", "PagingLimits", "offloaded", "page", "paged_solution"]
