"""Local search over recomputations, without a solver."""
