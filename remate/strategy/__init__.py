"""Strategies: a costed graph and a budget become reruns. `solve` tries them and takes what the simulator likes best."""

from .portfolio import STRATEGIES, Solution, solve

__all__ = ["STRATEGIES", "Solution", "solve"]
