"""Classical strategies, which treat a step as a chain of stages: for comparison, and for the smallest budgets."""
