"""Strategies that page: values, with or without recomputation, and parameters with their gradients."""

from __future__ import annotations

from .greedy import Paged, page
from .listing import PAGING_STRATEGIES, PagingStrategy
from .mixed import PAGED_STRATEGIES, PagingLimits, paged_solution
from .offloading import offloaded
from .poet import poet

__all__ = [
    "PAGED_STRATEGIES",
    "PAGING_STRATEGIES",
    "Paged",
    "PagingLimits",
    "PagingStrategy",
    "offloaded",
    "page",
    "paged_solution",
    "poet",
]
