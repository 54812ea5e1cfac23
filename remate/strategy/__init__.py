"""Strategies: a costed graph and a budget become reruns. `solve` tries them and takes what the simulator likes best."""

from .portfolio import STRATEGIES, Solution, check_strategy, solve
from .shared import Shared

__all__ = ["STRATEGIES", "Shared", "Solution", "check_strategy", "solve"]
