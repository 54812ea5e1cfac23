"""The classical strategies: comparators, and starting points where memory is very scarce. All yield candidates that the
simulator has judged; those that do not fit the budget tell how small a peak they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..milp.budget_search import Candidate
from ..milp.highs import Control
from .chain import Chain
from .checkpoint import checkpoint_blocks, chen
from .rotor_step import rotor

__all__ = ["CLASSICAL", "Chain", "rotor"]

Strategy = Callable[[Chain, int, Control], Iterator[Candidate]]

CLASSICAL: Mapping[str, Strategy] = {
    "checkpoint-blocks": lambda chain, budget, control: checkpoint_blocks(chain, budget, control, "checkpoint-blocks"),
    "chen-sqrt": lambda chain, budget, control: chen(chain, control, "chen-sqrt"),
    "rotor": lambda chain, budget, control: rotor(chain, budget, control, "rotor"),
}
