"""The classical strategies, which see a step as a chain of stages: for comparison, and for the smallest budgets."""
